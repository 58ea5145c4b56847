"""Mass expiries in slices: what happens between two slices counts."""

from __future__ import annotations

import asyncio

from liveness.clock import ManualClock
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import WorkerState
from liveness.slices import end_slice
from liveness.store.sql import SqlStore
from liveness.v1.worker_pb2 import HEARTBEAT_OUTCOME_RENEWED
from tests.databases import SHARD_COUNT
from tests.integration.engine.engine import NAMESPACE, Engine, activity

LEASE_MS = 5_000
WORKERS = [f"w-{number}" for number in range(1_500)]


async def silent_engine(store: SqlStore, storm_hold_ms: float = 0) -> Engine:
    """The leases of all workers are over with the next tick. One activity is bound to each."""
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    engine.node.policies.replace(NAMESPACE, {"storm_hold_ms": storm_hold_ms})
    await asyncio.gather(
        *(engine.beat(worker, lease_ms=LEASE_MS, bound_activities=[activity(worker)]) for worker in WORKERS)
    )
    await engine.advance(LEASE_MS - 250)
    assert active(engine) == WORKERS
    engine.clock.move(250)
    return engine


def active(engine: Engine) -> list[str]:
    return [worker for worker in WORKERS if engine.worker(worker).state is WorkerState.ACTIVE]


async def end_some(engine: Engine) -> list[str]:
    """Tick. Returns the workers whose leases have not ended yet, those whose turn is late at the end."""
    engine.node.tick()
    while len(active(engine)) == len(WORKERS):
        await end_slice()
    left = sorted(active(engine), key=lambda name: (engine.shard_of(name).id, WorkerKey(NAMESPACE, name)))
    assert len(left) > len(WORKERS) / 2
    return left


async def reschedules(engine: Engine) -> int:
    return sum(count.tasks for count in await engine.store.count_tasks(range(SHARD_COUNT)))


async def test_a_heartbeat_between_two_slices_keeps_the_lease(store: SqlStore) -> None:
    engine = await silent_engine(store)
    back = (await end_some(engine))[-1]
    before = engine.worker(back)
    beat = asyncio.create_task(engine.beat(back, lease_ms=LEASE_MS))
    await engine.timers.wait()
    assert not engine.node.broken.done()
    answer = await beat
    await engine.node.wait_all_durable()
    assert answer.outcome == HEARTBEAT_OUTCOME_RENEWED
    assert active(engine) == [back]
    assert engine.worker(back).epoch == before.epoch
    assert engine.worker(back).bindings == before.bindings
    assert await reschedules(engine) == len(WORKERS) - 1
    # It does not count as dead, neither in certificates nor for storms.
    assert engine.node.recent_deaths.count_last_minute(NAMESPACE) == len(WORKERS) - 1
    assert engine.node.throttle.death_rate.recent(NAMESPACE) == len(WORKERS) - 1
    await engine.advance(LEASE_MS - 250)
    assert active(engine) == [back]
    await engine.advance(250)
    assert active(engine) == []


async def test_a_shard_that_leaves_between_two_slices_keeps_its_leases(store: SqlStore) -> None:
    engine = await silent_engine(store)
    left = await end_some(engine)
    shard = engine.shard_of(left[-1])
    of_shard = {name for name in left if engine.shard_of(name) is shard}
    hand_over = asyncio.create_task(engine.node.hand_over([shard.id]))
    await engine.timers.wait()
    assert not engine.node.broken.done()
    assert await hand_over == [shard]
    await engine.node.wait_all_durable()
    assert {
        name for name in of_shard if shard.workers[WorkerKey(NAMESPACE, name)].state is WorkerState.ACTIVE
    }
    assert not engine.timers.is_behind
    assert await reschedules(engine) == engine.node.recent_deaths.count_last_minute(NAMESPACE)


async def test_no_slice_ends_leases_before_all_that_are_over_count_for_a_storm(store: SqlStore) -> None:
    engine = await silent_engine(store, storm_hold_ms=60_000)
    engine.node.tick()
    await engine.timers.wait()
    assert active(engine) == WORKERS
    assert engine.node.throttle.held_counts()[NAMESPACE] == len(WORKERS)


async def test_slices_do_not_go_on_after_a_stall(store: SqlStore) -> None:
    """Heartbeats may lie unread in the sockets."""
    engine = await silent_engine(store)
    await end_some(engine)
    engine.clock.move(60_000)
    left = active(engine)
    await engine.timers.wait()
    assert active(engine) == left
    engine.node.tick()
    await engine.timers.wait()
    assert active(engine) == left
    await engine.advance(1_000)
    assert active(engine) == []
