"""Mass expiries that exceed the size of one commit."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain import worker_control
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.engine.shard import Shard
from liveness.expiry.lease_deadlines import LeaseEnd
from liveness.store.sql import SqlStore
from liveness.tasks import timer_runner
from liveness.tasks.queue_runner import YIELD_MS_MAX
from liveness.tasks.timer_runner import EXPIRIES_PER_COMMIT_MAX
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import Engine, activity

LEASE_MS = 5_000
DISCONNECT_GRACE_MS = 1_000
HELD = 1_000
WORKERS = [
    (f"namespace-{number % 2}", f"w-{number}") for number in range(EXPIRIES_PER_COMMIT_MAX // HELD + 2)
]
"""Spread over two namespaces, in each of which they are too few for a storm."""


async def partly_expired(store: SqlStore) -> Engine:
    """All workers fall silent at once; the first of them have been expired."""
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    for namespace, worker in WORKERS:
        held = [activity(f"{worker}-{number}") for number in range(HELD)]
        await engine.beat(
            worker, namespace=namespace, lease_ms=LEASE_MS, bound_activities=held, full_bindings=True
        )
    await engine.advance(LEASE_MS - 250)
    assert active(engine) == set(WORKERS)
    await engine.step(250)
    return engine


def active(engine: Engine) -> set[tuple[str, str]]:
    return {
        (namespace, name)
        for namespace, name in WORKERS
        if engine.worker(name, namespace).state is WorkerState.ACTIVE
    }


async def waiting_reschedules(engine: Engine) -> int:
    return sum(count.tasks for count in await engine.store.count_tasks(range(SHARD_COUNT)))


async def test_a_mass_expiry_is_split_over_commits_and_complete(store: SqlStore) -> None:
    engine = await partly_expired(store)
    ended = len(WORKERS) - len(active(engine))
    assert 0 < ended < len(WORKERS)
    assert await waiting_reschedules(engine) == ended * HELD <= EXPIRIES_PER_COMMIT_MAX
    await engine.step(50)
    assert active(engine) == set()
    assert await waiting_reschedules(engine) == len(WORKERS) * HELD


async def test_a_heartbeat_before_its_worker_is_expired_renews_the_lease(
    store: SqlStore,
) -> None:
    engine = await partly_expired(store)
    back, *_ = active(engine)
    namespace, worker = back
    await engine.beat(worker, namespace=namespace, lease_ms=LEASE_MS)
    await engine.step(50)
    assert active(engine) == {back}
    await engine.advance(LEASE_MS - 250)
    assert active(engine) == {back}
    await engine.advance(250)
    assert active(engine) == set()


async def test_a_worker_whose_stream_returns_before_its_turn_keeps_the_rest_of_its_lease(
    store: SqlStore,
) -> None:
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    for namespace, worker in WORKERS:
        held = [activity(f"{worker}-{number}") for number in range(HELD)]
        await engine.beat(
            worker, namespace=namespace, lease_ms=LEASE_MS, bound_activities=held, full_bindings=True
        )
        key, shard = WorkerKey(namespace, worker), engine.shard_of(worker, namespace)
        shard.change_worker(key, worker_control.attach(key, shard.workers[key], "", DISCONNECT_GRACE_MS))
        shard.mark_disconnected(key)
    await engine.advance(DISCONNECT_GRACE_MS)
    assert 0 < len(active(engine)) < len(WORKERS)
    back, *_ = active(engine)
    namespace, worker = back
    engine.shard_of(worker, namespace).disconnected.pop(back)
    await engine.step(50)
    assert active(engine) == {back}
    await engine.advance(LEASE_MS - DISCONNECT_GRACE_MS - 300)
    assert active(engine) == {back}
    await engine.advance(250)
    assert active(engine) == set()
    assert engine.worker(worker, namespace).inactive_reason is InactiveReason.LEASE_EXPIRED


async def test_a_worker_rechecked_while_it_waits_for_expiry_dies_once(store: SqlStore) -> None:
    engine = await partly_expired(store)
    for namespace, worker in active(engine):
        engine.shard_of(worker, namespace).recheck(WorkerKey(namespace, worker))
    await engine.step(50)
    assert active(engine) == set()
    death_rate = engine.node.throttle.death_rate
    assert sum(death_rate.recent(namespace) for namespace in death_rate.namespaces()) == len(WORKERS)


async def test_deferred_leases_are_not_examined_again_with_every_commit(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a mass expiry takes a time that grows with the square of its size."""
    monkeypatch.setattr(timer_runner, "EXPIRIES_PER_COMMIT_MAX", 1)
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    for namespace, worker in WORKERS:
        await engine.beat(worker, namespace=namespace, lease_ms=LEASE_MS)
    await engine.advance(LEASE_MS - 250)
    examined: list[WorkerKey] = []
    lease_ended_by = Shard.lease_ended_by

    def count_and_examine(shard: Shard, key: WorkerKey) -> LeaseEnd | None:
        examined.append(key)
        return lease_ended_by(shard, key)

    monkeypatch.setattr(Shard, "lease_ended_by", count_and_examine)
    await engine.step(250)
    while active(engine):
        await engine.step(50)
    assert len(examined) == len(WORKERS)


async def test_queues_pause_until_all_expired_leases_are_ended(store: SqlStore) -> None:
    engine = await partly_expired(store)
    waiting = await waiting_reschedules(engine)
    await engine.queue.run_until_idle()
    assert await waiting_reschedules(engine) == waiting
    await engine.step(50)
    await engine.queue.run_until_idle()
    assert await waiting_reschedules(engine) == 0


async def test_queues_pause_for_a_bounded_time(store: SqlStore) -> None:
    engine = await partly_expired(store)
    waiting = await waiting_reschedules(engine)
    await engine.queue.run_until_idle()
    engine.clock.move(YIELD_MS_MAX)
    await engine.queue.run_until_idle()
    assert await waiting_reschedules(engine) < waiting


async def test_the_next_owner_ends_the_remaining_expired_leases(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    old = await partly_expired(store)
    ended = set(WORKERS) - active(old)
    await old.crash()
    new = await Engine(await store_database.open(), old.clock, grace_ms=0).start()
    assert set(WORKERS) - active(new) == ended
    await new.step(50)
    assert active(new) == set()
    assert await waiting_reschedules(new) == len(WORKERS) * HELD
