"""The log does not grow without end: changes of bindings go after a day, and everything within a limit on the size."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from liveness.clock import ManualClock
from liveness.domain.keys import WorkerKey
from liveness.store import retention
from liveness.store.size import DatabaseSize, SizeSample, Storage, growth_bytes_per_day, sqlite_size
from liveness.store.sql import SqlStore
from liveness.tasks.maintenance import Maintenance
from tests.databases import StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine, activity
from tests.integration.engine.test_checkpoints import all_workers

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def change_bindings(engine: Engine, count: int, worker: str = "w") -> None:
    """Each heartbeat takes up one activity and finishes the one before."""
    for number in range(count):
        await engine.beat(
            worker, bound_activities=[activity(str(number))], unbound_activities=[activity(str(number - 1))]
        )


async def kinds(store_database: StoreDatabase) -> Counter[str]:
    return Counter(row[3] for row in (await store_database.dump())["log"] if row[5] == NAMESPACE)


async def retain(engine: Engine, after_ms: int = 0) -> None:
    engine.clock.jump_wall(after_ms)
    await engine.maintenance.checkpoint()
    await engine.maintenance.apply_retention()


async def restarted(engine: Engine) -> Engine:
    await engine.crash()
    return await Engine(engine.store, engine.clock).start()


async def test_changes_of_bindings_go_after_a_day_and_other_events_stay(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    engine = await Engine(store, ManualClock()).start()
    await change_bindings(engine, 5)
    await retain(engine, DAY_MS - HOUR_MS)
    assert await kinds(store_database) == {"WorkerRegistered": 1, "BindingsChanged": 4}
    await change_bindings(engine, 1)
    await retain(engine, 2 * HOUR_MS)
    assert await kinds(store_database) == {"WorkerRegistered": 1, "BindingsChanged": 1}
    before = all_workers(engine)
    engine = await restarted(engine)
    assert all_workers(engine) == before
    assert {each.activity_id for each in engine.worker("w").bindings.values()} == {"0", "4"}
    await engine.stop()


async def test_a_change_of_bindings_stays_as_long_as_recovery_needs_it(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    engine = await Engine(store, ManualClock()).start()
    await change_bindings(engine, 3)
    engine.clock.jump_wall(3 * DAY_MS)
    await engine.maintenance.apply_retention()
    assert (await kinds(store_database))["BindingsChanged"] == 2
    before = all_workers(engine)
    engine = await restarted(engine)
    assert all_workers(engine) == before
    assert WorkerKey(NAMESPACE, "w") in before
    await engine.stop()


async def test_a_namespace_may_keep_its_changes_of_bindings(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    engine = await Engine(store, ManualClock()).start()
    engine.node.policies.replace(NAMESPACE, {"binding_retention_ms": 0})
    await change_bindings(engine, 3)
    await retain(engine, 3 * DAY_MS)
    assert (await kinds(store_database))["BindingsChanged"] == 2
    await retain(engine, 30 * DAY_MS)
    assert await kinds(store_database) == {}, "like all other events"
    await engine.stop()


async def test_beyond_its_limit_the_database_loses_its_oldest_events_changes_of_bindings_first(
    store_database: StoreDatabase, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVENT_DELETE_BATCH", 5)
    engine = await Engine(store, ManualClock()).start()
    for number in range(20):
        await engine.beat(str(number), session_id="s")
    await change_bindings(engine, 60)
    await engine.maintenance.checkpoint()
    await store_database.execute("ANALYZE log")
    used = (await store.read_storage(engine.clock.wall_ms())).size.used_bytes
    engine.maintenance = Maintenance(
        engine.node, task_retention_ms=7 * DAY_MS, database_bytes_max=max(1, used - 6_000)
    )
    before = all_workers(engine)
    await engine.maintenance.apply_retention()
    left = await kinds(store_database)
    assert left["WorkerRegistered"] == 21
    assert 0 < left["BindingsChanged"] < 59
    sequences = [row[2] for row in (await store_database.dump())["log"] if row[3] == "BindingsChanged"]
    assert max(sequences) == engine.shard_of("w").durable_feed_seq, "the newest are left"
    engine.maintenance = Maintenance(engine.node, task_retention_ms=7 * DAY_MS, database_bytes_max=1)
    await engine.maintenance.apply_retention()
    assert await kinds(store_database) == {}, "everything that the checkpoint contains"
    engine = await restarted(engine)
    assert all_workers(engine) == before
    await engine.stop()


async def test_the_growth_is_that_of_the_last_day(store: SqlStore) -> None:
    engine = await Engine(store, ManualClock()).start()
    assert (await store.read_storage(engine.clock.wall_ms())).growth_bytes_per_day is None
    await engine.maintenance.record_size()
    for number in range(300):
        await engine.beat(f"worker-{number}")
    engine.clock.jump_wall(12 * HOUR_MS)
    storage = await store.read_storage(engine.clock.wall_ms())
    assert storage.growth_bytes_per_day is not None
    assert storage.growth_bytes_per_day > 300 * 2 * 100
    assert storage.size.disk_bytes > storage.size.used_bytes // 2
    await engine.maintenance.record_size()
    engine.clock.jump_wall(13 * HOUR_MS)
    growth = (await store.read_storage(engine.clock.wall_ms())).growth_bytes_per_day
    assert growth is not None
    assert abs(growth) < 300 * 100, "the workers came more than a day ago"
    await engine.stop()


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_deleted_rows_leave_room_on_sqlite(store: SqlStore) -> None:
    engine = await Engine(store, ManualClock()).start()
    engine.node.policies.replace(NAMESPACE, {"worker_heartbeat_rate": 0.0})
    await change_bindings(engine, 300)
    await engine.maintenance.checkpoint()
    full = (await store.read_storage(engine.clock.wall_ms())).size
    await retain(engine, 40 * DAY_MS)
    after = (await store.read_storage(engine.clock.wall_ms())).size
    assert after.used_bytes < full.used_bytes
    assert after.disk_bytes >= full.disk_bytes
    assert full.free_bytes is not None
    await engine.stop()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
async def test_the_room_on_postgresql_is_not_known(store: SqlStore) -> None:
    storage = await store.read_storage(0)
    assert (storage.size.free_bytes, storage.days_until_full) == (None, None)


@pytest.mark.parametrize(
    ("free", "growth", "days"), [(1_000, 100, 10.0), (1_000, 0, None), (1_000, -5, None), (None, 100, None)]
)
def test_the_days_until_full(free: int | None, growth: int, days: float | None) -> None:
    assert Storage(DatabaseSize(1, 1, free), growth).days_until_full == days


def test_a_growth_needs_some_time() -> None:
    assert growth_bytes_per_day([]) is None
    assert growth_bytes_per_day([SizeSample(0, 5), SizeSample(60_000, 9)]) is None
    assert growth_bytes_per_day([SizeSample(0, 5), SizeSample(HOUR_MS, 7), SizeSample(DAY_MS // 2, 9)]) == 8


def test_a_database_in_memory_has_no_disk() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE one (n INTEGER)")
        size = sqlite_size(lambda statement: connection.execute(statement).fetchall())
    assert size.used_bytes == size.disk_bytes > 0
    assert size.free_bytes is None
