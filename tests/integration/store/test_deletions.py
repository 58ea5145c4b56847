"""Whatever retention deletes from the log is on record, in the transaction that deletes it."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from liveness.store import migrate, retention
from liveness.store.deletions import DeletedEvents
from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.unit.store.samples import About, described, key, renewals, take, take_one


def event(namespace: str, at_ms: int) -> About:
    return About(described(), key(namespace=namespace), wall_ms=at_ms)


async def test_the_newest_deleted_event_of_each_namespace_is_recorded(store: SqlStore) -> None:
    owner = await take_one(store)  # sequence 1, no namespace, at 1,000
    await owner.commit([event("a", 100), event("b", 100), event("a", 300), event("b", 400)], checkpoint=[])
    assert await store.read_deletions([0], None) == {}
    await store.prune_events(owner.owned, {"b": 0}, default_cutoff=2_000)
    assert await store.read_deletions([0], "a") == {0: DeletedEvents(4, 2, 300)}
    assert await store.read_deletions([0], "b") == {}
    assert await store.read_deletions([0, 1], None) == {0: DeletedEvents(4, 3, 1_000)}
    await store.prune_events(owner.owned, {}, default_cutoff=200)
    assert await store.read_deletions([0], "b") == {0: DeletedEvents(3, 1, 100)}
    await store.prune_events(owner.owned, {}, default_cutoff=2_000)
    assert await store.read_deletions([0], "b") == {0: DeletedEvents(5, 2, 400)}


async def test_a_page_of_the_feed_says_what_was_deleted(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([event("a", 100), event("a", 300)], checkpoint=[])
    await store.prune_events(owner.owned, {}, default_cutoff=200)
    page = await store.read_feed(0, 0, owner.head, 10, namespace="a")
    assert [entry.wall_ms for entry in page.entries] == [300]
    assert page.deleted == DeletedEvents(2, 1, 100)


async def test_compacted_renewals_are_not_recorded(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(renewals(1)), About(renewals(1))], checkpoint=[])
    assert await store.compact_renewals(owner.owned) == 2
    assert await store.read_deletions([0], None) == {}


async def test_a_former_owner_records_nothing(store_database: StoreDatabase, store: SqlStore) -> None:
    [owner] = await take(store, 0)
    await owner.commit([event("a", 100)], checkpoint=[])
    await (await store_database.open()).take_over([0], "node-2", wall_ms=0)
    with pytest.raises(ShardsLost):
        await store.prune_events(owner.owned, {}, default_cutoff=2_000)
    assert await store.read_deletions([0], None) == {}


async def test_events_are_found_and_deleted_over_many_batches(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third event stays; a later run finds it when its time has come."""
    monkeypatch.setattr(retention, "SCAN_IDS", 7)
    monkeypatch.setattr(retention, "EVENT_DELETE_BATCH", 3)
    owner = await take_one(store)
    await owner.commit([event("long" if at % 3 == 0 else "short", at) for at in range(1, 61)], checkpoint=[])
    for cutoff, deleted in [(31, 20), (31, 0), (61, 20)]:
        assert await store.prune_events(owner.owned, {"long": 0}, default_cutoff=cutoff) == deleted
    assert await store.prune_events(owner.owned, {}, default_cutoff=61) == 20
    assert await store.read_log(0, 1, owner.head, 100) == []


async def test_a_later_run_deletes_events_that_came_since(store: SqlStore) -> None:
    owner = await take_one(store)
    for deleted in (3, 2, 2):  # the first time, the take-over too
        await owner.commit([event("a", 100), event("a", 100)], checkpoint=[])
        assert await store.prune_events(owner.owned, {}, default_cutoff=2_000) == deleted
        assert await store.prune_events(owner.owned, {}, default_cutoff=2_000) == 0


async def test_events_of_some_kinds_can_be_deleted_earlier(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([event("a", 100), event("a", 300)], checkpoint=[])
    assert await store.prune_events(owner.owned, {}, 2_000, kinds=("BindingsChanged",)) == 0
    assert await store.prune_events(owner.owned, {}, 200, kinds=("BindingsChanged", "WorkerDescribed")) == 1


@pytest.mark.parametrize("first_left", [1, 4, None])
async def test_what_earlier_versions_deleted_counts_as_deleted(
    store_database: StoreDatabase, first_left: int | None
) -> None:
    """They kept no record. Everything before the oldest event that is left may have been deleted."""

    def at_0005(connection: Connection) -> None:
        for revision in ("0001", "0002", "0003", "0004", "0005"):
            script = migrate.MIGRATIONS / "versions" / f"{revision}.{connection.dialect.name}.sql"
            for statement in script.read_text().split(";\n"):
                if statement.strip():
                    connection.exec_driver_sql(statement)
        connection.execute(
            text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        )
        connection.execute(text("INSERT INTO alembic_version VALUES ('0005')"))
        connection.execute(text(f"INSERT INTO meta VALUES ('shard_count', '{SHARD_COUNT}')"))
        for shard_id in range(SHARD_COUNT):
            last_seq = 9 if shard_id == 2 else 0
            connection.execute(
                text(
                    "INSERT INTO shards (shard_id, epoch, last_seq, observed_ms, takeovers, owner)"
                    f" VALUES ({shard_id}, 7, {last_seq}, 0, '[]', 'node-1')"
                )
            )
        for seq in range(first_left, 10) if first_left else ():
            connection.execute(
                text(
                    "INSERT INTO log (shard_id, seq, kind, version, namespace, wall_ms, observed_ms, payload, checksum)"
                    f" VALUES (2, {seq}, 'ConfigChanged', 1, 'a', 0, 0, '', 0)"
                )
            )

    await store_database.run(at_0005)
    store = await store_database.open()
    expected = {1: {}, 4: {2: DeletedEvents(3)}, None: {2: DeletedEvents(9)}}[first_left]
    for namespace in ("a", "b", None):
        assert await store.read_deletions(range(SHARD_COUNT), namespace) == expected
    assert not migrate.Revisions().excludes_writer("0005")
