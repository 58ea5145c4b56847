"""Two concurrent holders: the second check waits until the first transaction has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.util import await_only

from liveness.fencing import SeenToken, StaleToken
from tests.integration.fencing.fenced_database import (
    FencedDatabase,
    FencingToken,
    Writer,
    guard,
    note,
    postgres_engine,
    put_note,
    sqlite_engine,
)

OLD, NEW = FencingToken(1, 4), FencingToken(2, 1)


async def waiting(writer: Writer, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start the work and return when it waits for a lock of another writer."""
    task = asyncio.create_task(work)
    await writer.until_waiting()
    assert not task.done()
    return task


@pytest.fixture(params=[False, True], ids=["first token", "later token"])
async def known(request: pytest.FixtureRequest, database: FencedDatabase) -> bool:
    """Whether the resource was written before: then its row is updated, otherwise inserted."""
    if request.param:
        writer = await database.writer()
        await writer.check("photo-17", FencingToken(1, 1))
        await writer.commit()
    return bool(request.param)


@pytest.mark.usefixtures("known")
async def test_a_former_holder_waits_for_the_new_one_and_is_refused(database: FencedDatabase) -> None:
    newer, former = await database.writer(), await database.writer()
    await newer.check("photo-17", NEW)
    late = await waiting(former, former.check("photo-17", OLD))
    await newer.run(put_note, "photo-17", "by the new holder")
    await newer.commit()
    with pytest.raises(StaleToken) as caught:
        await late
    assert caught.value.newest == SeenToken(*NEW)
    await former.rollback()
    assert await database.read_committed(note, "photo-17") == "by the new holder"


async def test_a_former_holder_may_write_if_the_new_one_rolled_back(
    database: FencedDatabase, known: bool
) -> None:
    """No newer token is recorded then."""
    newer, former = await database.writer(), await database.writer()
    await newer.check("photo-17", NEW)
    late = await waiting(former, former.check("photo-17", OLD))
    await newer.rollback()
    await late
    await former.commit()
    assert await database.read_committed(guard.newest, "photo-17") == SeenToken(*OLD)


@pytest.mark.usefixtures("known")
async def test_the_new_holder_waits_for_an_earlier_write_and_then_sees_it(
    database: FencedDatabase,
) -> None:
    """Check and write are atomic: the late write is completely before the new holder's, never after it."""
    newer, former = await database.writer(), await database.writer()
    await former.check("photo-17", OLD)
    takes_over = await waiting(newer, newer.check("photo-17", NEW))
    await former.run(put_note, "photo-17", "by the old holder, in time")
    await former.commit()
    await takes_over
    assert await newer.run(note, "photo-17") == "by the old holder, in time"
    await newer.run(put_note, "photo-17", "by the new holder")
    await newer.commit()
    assert await database.read_committed(note, "photo-17") == "by the new holder"
    assert await database.read_committed(guard.newest, "photo-17") == SeenToken(*NEW)


@pytest.mark.usefixtures("known")
async def test_a_second_writer_with_the_same_token_waits_and_passes(database: FencedDatabase) -> None:
    """Two threads of one holder."""
    one, other = await database.writer(), await database.writer()
    await one.check("photo-17", NEW)
    second = await waiting(other, other.check("photo-17", NEW))
    await one.commit()
    await second


async def test_the_newest_of_many_concurrent_holders_writes_last(database: FencedDatabase) -> None:
    """In any order, no holder writes after a newer one."""
    tokens = [FencingToken(attempt, 1) for attempt in range(1, 9)]
    writers = [await database.writer() for _ in tokens]

    async def write(writer: Writer, token: FencingToken) -> None:
        try:
            await writer.check("photo-17", token)
            before = await writer.run(note, "photo-17")
            assert int(before or 0) < token.attempt, "an older holder wrote after a newer one"
            await writer.run(put_note, "photo-17", str(token.attempt))
            await writer.commit()
        except StaleToken:
            await writer.rollback()

    await asyncio.gather(*(write(*pair) for pair in zip(writers, tokens, strict=True)))
    assert await database.read_committed(note, "photo-17") == "8"


@pytest.mark.parametrize("dialect", ["postgresql"])
@pytest.mark.parametrize(("mine", "passes"), [(OLD, False), (NEW, True), (FencingToken(3, 1), True)])
async def test_a_first_token_recorded_between_two_statements_of_a_check_is_compared(
    database: FencedDatabase, mine: FencingToken, passes: bool
) -> None:
    """The row does not exist when the check tries to update it, and exists when the check reads the cause."""
    other = await database.writer()
    engine = postgres_engine(database.url)
    between = iter([other.check("photo-17", NEW), other.commit()])

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def on_statement(_: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("SELECT"):
            for step in between:
                await_only(step)

    async with engine.connect() as connection:
        if passes:
            await guard.check_async(connection, "photo-17", mine)
        else:
            with pytest.raises(StaleToken):
                await guard.check_async(connection, "photo-17", mine)
    assert next(between, None) is None, "both steps ran between the statements"


async def test_a_check_needs_one_statement(database: FencedDatabase) -> None:
    """Except for the first check of a resource, which must find that no row exists."""
    writer = await database.writer()
    counts = []
    for _ in range(2):
        statements = await writer.run(statements_of_a_check)
        await writer.commit()
        counts.append([statement.split()[0] for statement in statements])
    assert counts == [["UPDATE", "SELECT", "SAVEPOINT", "INSERT", "RELEASE"], ["UPDATE"]]


def statements_of_a_check(connection: Connection) -> list[str]:
    seen: list[str] = []

    def on_statement(_: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    event.listen(connection, "before_cursor_execute", on_statement)
    guard.check(connection, "photo-17", OLD)
    event.remove(connection, "before_cursor_execute", on_statement)
    return seen


@pytest.mark.parametrize("dialect", ["postgresql"])
async def test_checks_of_other_resources_do_not_wait(database: FencedDatabase) -> None:
    """On SQLite all writers wait for each other, with or without a guard."""
    one, other = await database.writer(), await database.writer()
    await one.check("photo-17", NEW)
    await other.check("photo-18", OLD)
    await other.commit()


@pytest.mark.parametrize("dialect", ["postgresql"])
async def test_a_refused_former_holder_blocks_no_writer(database: FencedDatabase) -> None:
    """Even if it keeps its transaction open."""
    newer, former = await database.writer(), await database.writer()
    await newer.check("photo-17", NEW)
    await newer.commit()
    with pytest.raises(StaleToken):
        await former.check("photo-17", OLD)
    await newer.check("photo-17", NEW)
    await newer.commit()


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.usefixtures("known")
async def test_a_check_locks_the_file(database: FencedDatabase) -> None:
    """Shown by a writer that does not wait for locks."""
    newer = await database.writer()
    await newer.check("photo-17", NEW)
    no_wait_engine = sqlite_engine(database.url, wait_seconds=0)
    with no_wait_engine.connect() as former:
        with pytest.raises(OperationalError, match="locked"):
            guard.check(former, "photo-17", OLD)
        former.rollback()
        await newer.commit()
        with pytest.raises(StaleToken):
            guard.check(former, "photo-17", OLD)
