"""The order of tokens, and the recorded token."""

from __future__ import annotations

import asyncio
import pickle
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, func, inspect, select

from liveness.fencing import FencingGuard, SeenToken, StaleToken, guarded_update
from tests.integration.fencing.fenced_database import (
    FencedDatabase,
    FencingToken,
    guard,
    note,
    notes,
    put_note,
)

numbers = st.integers(1, 4) | st.sampled_from([0, 2**63 - 1])
tokens = st.builds(FencingToken, numbers, numbers)
fresh = count()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(tokens, st.booleans()), max_size=12))
async def test_accepted_tokens_never_decrease(
    database: FencedDatabase, steps: list[tuple[FencingToken, bool]]
) -> None:
    """Each check is accepted exactly if no newer token was committed."""
    resource = f"resource-{next(fresh)}"
    writer = await database.writer()
    newest: FencingToken | None = None
    for token, commits in steps:
        refused = await writer.refusal(resource, token)
        assert (refused is not None) == (newest is not None and token < newest)
        if refused is not None and newest is not None:
            assert (refused.given, refused.newest) == (SeenToken(*token), SeenToken(*newest))
        elif commits:
            newest = token
        await (writer.commit() if commits else writer.rollback())
    await database.roll_back(writer)
    recorded = await database.read_committed(guard.newest, resource)
    assert recorded == (SeenToken(*newest) if newest else None)


@pytest.mark.parametrize(
    ("recorded", "given", "passes"),
    [
        ((2, 5), (2, 5), True),
        ((2, 5), (2, 6), True),
        ((2, 5), (3, 1), True),
        ((2, 5), (2, 4), False),
        ((2, 5), (1, 9), False),
    ],
)
async def test_tokens_are_ordered_by_attempt_and_then_by_epoch(
    database: FencedDatabase, recorded: tuple[int, int], given: tuple[int, int], passes: bool
) -> None:
    writer = await database.writer()
    await writer.check("photo-17", FencingToken(*recorded))
    await writer.commit()
    if passes:
        await writer.check("photo-17", FencingToken(*given))
        return
    with pytest.raises(StaleToken):
        await writer.check("photo-17", FencingToken(*given))


async def test_resources_are_independent(database: FencedDatabase) -> None:
    writer = await database.writer()
    await writer.check("photo-17", FencingToken(5, 1))
    await writer.check("photo-18", FencingToken(1, 1))


async def test_a_refusal_names_resource_tokens_and_holders(database: FencedDatabase) -> None:
    writer = await database.writer()
    await writer.check("photo-17", FencingToken(3, 1), "worker-b")
    with pytest.raises(StaleToken) as caught:
        await writer.check("photo-17", FencingToken(2, 7), "worker-a")
    refused = caught.value
    assert refused.resource == "photo-17"
    assert (refused.given.holder, refused.newest.holder) == ("worker-a", "worker-b")
    assert str(refused) == (
        "photo-17 was written with attempt 3, lease epoch 1 (worker-b), so attempt 2, lease epoch 7 (worker-a) "
        "comes too late: its holder was replaced and must stop."
    )


def test_a_refusal_can_be_pickled() -> None:
    refused = StaleToken("photo-{17}", SeenToken(1, 2), SeenToken(2, 1, "worker-b"))
    copy = pickle.loads(pickle.dumps(refused))
    assert str(copy) == str(refused)
    assert (copy.resource, copy.given, copy.newest) == (refused.resource, refused.given, refused.newest)


async def test_a_refusal_changes_nothing(database: FencedDatabase) -> None:
    """The transaction can still be used for writes that do not need the token."""
    writer = await database.writer()
    await writer.check("photo-17", FencingToken(3, 1), "worker-b")
    await writer.commit()
    with pytest.raises(StaleToken):
        await writer.check("photo-17", FencingToken(2, 1), "worker-a")
    await writer.run(put_note, "log", "worker-a was refused")
    await writer.commit()
    recorded = await database.read_committed(guard.newest, "photo-17")
    assert recorded is not None
    assert recorded.holder == "worker-b"
    assert await database.read_committed(note, "log") == "worker-a was refused"


@pytest.mark.parametrize("known", [False, True], ids=["first token", "later token"])
async def test_a_rollback_discards_token_and_write(database: FencedDatabase, known: bool) -> None:
    writer = await database.writer()
    if known:
        await writer.check("photo-17", FencingToken(1, 1), "worker-a")
        await writer.commit()
    await writer.check("photo-17", FencingToken(9, 1), "worker-b")
    await writer.run(put_note, "photo-17", "half a thumbnail")
    await writer.rollback()
    recorded = await database.read_committed(guard.newest, "photo-17")
    assert recorded == (SeenToken(1, 1) if known else None)
    assert recorded is None or recorded.holder == "worker-a"
    assert await database.read_committed(note, "photo-17") is None


async def test_the_last_holder_and_its_time_are_recorded(database: FencedDatabase) -> None:
    writer = await database.writer()
    for attempt, holder in ((1, "worker-a"), (2, "worker-b")):
        await writer.check("photo-17", FencingToken(attempt, 1), holder)
        await writer.commit()

    def row(connection: Connection) -> tuple[str, bool]:
        found = connection.execute(select(guard.table.c.holder, guard.table.c.seen_at)).one()
        return found.holder, found.seen_at is not None

    assert await database.read_committed(row) == ("worker-b", True)


async def test_the_table_can_be_created_concurrently(dialect: str, url: str) -> None:
    database = FencedDatabase(dialect, url)
    apart = FencingGuard(table_name="fences")
    writers = [await database.writer() for _ in range(8)]

    async def start(worker: int) -> None:
        await writers[worker].run(apart.create)
        await writers[worker].run(apart.check, f"photo-{worker}", FencingToken(1, 1))
        await writers[worker].commit()

    try:
        await asyncio.gather(*(start(worker) for worker in range(len(writers))))
        rows = await database.read_committed(
            lambda connection: connection.scalar(select(func.count()).select_from(apart.table))
        )
    finally:
        await database.close()
    assert rows == len(writers)


async def test_the_table_belongs_to_the_given_metadata(database: FencedDatabase) -> None:
    """Tools that create and migrate the user's tables therefore include it."""
    tables = await database.read_committed(lambda connection: set(inspect(connection).get_table_names()))
    assert tables == {"liveness_fencing_tokens", "notes"}
    assert guard.table.metadata is notes.metadata


class TestRowsThatCarryTheirToken:
    photos = Table(
        "photos",
        MetaData(),
        Column("id", Text, primary_key=True),
        Column("attempt", BigInteger, nullable=False),
        Column("lease_epoch", BigInteger, nullable=False),
        Column("thumbnail", Text),
    )

    def write(self, connection: Connection, token: FencingToken, thumbnail: str) -> int:
        statement = guarded_update(self.photos, token).where(self.photos.c.id == "17")
        touched: int = connection.execute(statement.values(thumbnail=thumbnail)).rowcount
        return touched

    async def test_older_tokens_update_no_row(self, database: FencedDatabase) -> None:
        writer = await database.writer()
        await writer.run(self.photos.metadata.create_all)
        first = self.photos.insert().values(id="17", attempt=0, lease_epoch=0)
        other = self.photos.insert().values(id="18", attempt=0, lease_epoch=0)
        await writer.run(lambda connection: (connection.execute(first), connection.execute(other)))
        assert await writer.run(self.write, FencingToken(2, 2), "by the second") == 1
        assert await writer.run(self.write, FencingToken(1, 9), "by the first") == 0
        assert await writer.run(self.write, FencingToken(2, 1), "by the first") == 0
        assert await writer.run(self.write, FencingToken(2, 2), "by the second again") == 1
        rows = await writer.run(
            lambda connection: connection.execute(select(self.photos).order_by(self.photos.c.id)).all()
        )
        assert [tuple(row) for row in rows] == [("17", 2, 2, "by the second again"), ("18", 0, 0, None)]

    async def test_a_former_holder_waits_for_the_new_one_and_then_updates_no_row(
        self, database: FencedDatabase
    ) -> None:
        newer, former = await database.writer(), await database.writer()
        await newer.run(self.photos.metadata.create_all)
        first = self.photos.insert().values(id="17", attempt=1, lease_epoch=1)
        await newer.run(lambda connection: connection.execute(first))
        await newer.commit()
        await newer.run(self.write, FencingToken(2, 1), "by the second")
        late = asyncio.create_task(former.run(self.write, FencingToken(1, 1), "by the first"))
        await former.until_waiting()
        assert not late.done()
        await newer.commit()
        assert await late == 0
