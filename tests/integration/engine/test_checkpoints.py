"""Checkpoints and compaction shorten recovery and change nothing else."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.store.schema import RENEWALS_KIND
from tests.databases import StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine, activity, duration
from tests.integration.store.faulty_store import Fault, FaultyStore


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    return store


def all_workers(engine: Engine) -> dict[WorkerKey, Worker]:
    return {key: worker for shard in engine.node.shards() for key, worker in shard.workers.items()}


async def run_workload(engine: Engine, turns: int) -> None:
    """Send renewals, binding changes, new terms and new descriptions."""
    for turn in range(turns):
        for number in range(12):
            key = WorkerKey(NAMESPACE, f"w{number}")
            known = engine.shard_of(key.instance_key).workers.get(key)
            sequence = known.sequence + 1 if known else 1
            fields: dict[str, object] = {"session_id": f"s{number}", "sequence": sequence, "successes": 1}
            if (turn + number) % 3 == 0:
                fields["bound_activities"] = [activity(f"{number}-{turn}")]
            if (turn + number) % 5 == 0:
                fields["lease_duration"] = duration(20_000 + turn)
            if (turn + number) % 7 == 0:
                fields["host_name"] = f"h{turn}"
            await engine.beat(f"w{number}", **fields)  # type: ignore[arg-type]
        await engine.advance(250)


async def renewals(store_database: StoreDatabase) -> int:
    rows = (await store_database.dump())["log"]
    return sum(RENEWALS_KIND in row for row in rows)


async def test_recovery_from_log_checkpoint_or_both_gives_the_same_workers(
    store_database: StoreDatabase, store: FaultyStore
) -> None:
    engine = await Engine(store, ManualClock()).start()
    for checkpointed in (False, True, False, True):
        await run_workload(engine, 4)
        if checkpointed:
            await engine.maintenance.checkpoint()
            await run_workload(engine, 2)
        before = all_workers(engine)
        await engine.crash()
        engine = await Engine(store, ManualClock()).start()
        assert all_workers(engine) == before
    await engine.stop()


async def test_compaction_deletes_the_renewals_that_a_checkpoint_contains(
    store_database: StoreDatabase, store: FaultyStore
) -> None:
    engine = await Engine(store, ManualClock()).start()
    await run_workload(engine, 5)
    assert await renewals(store_database) > 0
    await engine.maintenance.checkpoint()
    assert await renewals(store_database) == 0
    before = all_workers(engine)
    await engine.crash()
    engine = await Engine(store, ManualClock()).start()
    assert all_workers(engine) == before
    await engine.stop()


async def test_a_graceful_stop_leaves_nothing_to_replay(store: FaultyStore) -> None:
    engine = await Engine(store, ManualClock()).start()
    await run_workload(engine, 3)
    before = all_workers(engine)
    await engine.stop()
    snapshots = await store.take_over(range(4), "reader", 0)
    assert all(snapshot.tail == [] for snapshot in snapshots)
    engine = await Engine(store, ManualClock()).start()
    assert all_workers(engine) == before
    await engine.stop()


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
async def test_a_failed_checkpoint_loses_nothing(store: FaultyStore, fault: Fault) -> None:
    engine = await Engine(store, ManualClock()).start()
    await run_workload(engine, 3)
    before = all_workers(engine)
    store.faults.append(fault)
    await engine.maintenance.checkpoint()
    await engine.recovered()
    assert all_workers(engine) == before
    await engine.maintenance.checkpoint()
    await engine.crash()
    engine = await Engine(store, ManualClock()).start()
    assert all_workers(engine) == before
    await engine.stop()


async def test_event_retention_keeps_the_events_that_recovery_needs(
    store_database: StoreDatabase, store: FaultyStore
) -> None:
    clock = ManualClock()
    engine = await Engine(store, clock).start()
    await run_workload(engine, 4)
    clock.jump_wall(40 * 86_400_000)
    await engine.maintenance.apply_retention()
    before = all_workers(engine)
    await engine.crash()
    engine = await Engine(store, clock).start()
    assert all_workers(engine) == before
    await engine.maintenance.checkpoint()
    clock.jump_wall(40 * 86_400_000)
    await engine.maintenance.apply_retention()
    assert not [row for row in (await store_database.dump())["log"] if NAMESPACE in row], (
        "checkpointed and past its retention"
    )
    await engine.crash()
    engine = await Engine(store, clock).start()
    assert all_workers(engine) == before
    await engine.stop()
