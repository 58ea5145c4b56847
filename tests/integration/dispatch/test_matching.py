"""Matching is fair and immediate, and loses nothing when commits fail."""

from __future__ import annotations

import asyncio

import pytest

from liveness.clock import ManualClock
from liveness.domain import activity_decider, worker_control
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import ActivitySpec, AttemptHolder, current_holder
from liveness.domain.errors import ShardUnavailable, TooManyPolls
from liveness.domain.events import Retry
from liveness.domain.keys import ActivityKey, WorkerKey
from tests.databases import StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine, activity
from tests.integration.store.faulty_store import Fault, FaultyStore

WORKER = WorkerKey(NAMESPACE, "w")


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    return store


@pytest.fixture
async def engine(store: FaultyStore) -> Engine:
    return await Engine(store, ManualClock(), grace_ms=0).start()


def key(name: str, namespace: str = NAMESPACE) -> ActivityKey:
    return ActivityKey(namespace, f"workflow-{name}", "run", name)


async def schedule(engine: Engine, name: str, task_queue: str = "queue") -> None:
    await engine.ownership.schedule(key(name), ActivitySpec("", task_queue, b"", Retry()))


def poll(
    engine: Engine, task_queue: str = "queue", worker: str = "w", limit: int = 1, wait_ms: int = 60_000
) -> asyncio.Task[list[Activity]]:
    return asyncio.ensure_future(
        engine.matching.poll(WorkerKey(NAMESPACE, worker), "", task_queue, limit, wait_ms)
    )


async def waiting(engine: Engine, count: int) -> None:
    while sum(len(polls) for polls in engine.matching._polls.values()) < count:
        await asyncio.sleep(0)


async def poll_waiting(engine: Engine) -> None:
    """Wait until a poll waits and matching has found nothing for it."""
    await waiting(engine, 1)
    while engine.matching._scheduled_turn is not None:
        await asyncio.sleep(0)


def held(engine: Engine, name: str) -> Activity:
    found = engine.ownership.shard(key(name)).activities.get(key(name))
    assert found is not None
    return found


async def test_a_long_queue_does_not_block_another(engine: Engine) -> None:
    """Six hundred polls wait for as many activities of one queue; one poll of another queue still gets its
    turn."""
    await engine.beat("w")
    order: list[str] = []
    engine.node.policies.replace("", {"max_bindings_per_worker": 100_000})
    for name in ("many", "few"):
        await engine.beat(name)
    many = [schedule(engine, f"many-{number}", "many") for number in range(600)]
    await asyncio.gather(*many, schedule(engine, "few", "few"))
    many_polls = [poll(engine, "many", "many") for _ in range(600)]
    few_poll = poll(engine, "few", "few")
    while len(engine.matching._polls) < 2:
        await asyncio.sleep(0)
    [alone] = engine.matching._polls[WorkerKey(NAMESPACE, "few")]
    alone.completion.add_done_callback(lambda _: order.append("few"))
    for one in engine.matching._polls[WorkerKey(NAMESPACE, "many")]:
        one.completion.add_done_callback(lambda _: order.append("many"))
    await asyncio.wait([few_poll, *many_polls])
    assert held(engine, "few").state is ActivityState.STARTED
    assert order.index("few") < 300, "it was served before most of the others"


async def test_the_number_of_waiting_polls_per_worker_is_limited(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.dispatch.matching.POLLS_PER_WORKER_MAX", 3)
    await engine.beat("w")
    polls = [poll(engine) for _ in range(3)]
    await waiting(engine, 3)
    with pytest.raises(TooManyPolls):
        await poll(engine)
    for one in polls:
        one.cancel()
    await asyncio.wait(polls)
    await schedule(engine, "a")
    assert len(await poll(engine)) == 1


async def test_waiting_workers_share_the_available_activities(engine: Engine) -> None:
    for worker in ("a", "b"):
        await engine.beat(worker)
    for number in range(10):
        await schedule(engine, str(number))
    first, second = poll(engine, worker="a", limit=10), poll(engine, worker="b", limit=10)
    assert sorted((len(await first), len(await second))) == [5, 5]


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
async def test_a_hand_out_with_a_failed_commit_is_withdrawn(
    engine: Engine, store: FaultyStore, fault: Fault
) -> None:
    """The poll fails. If the hand-out was committed nevertheless, it is detected and taken back."""
    await engine.beat("w", lease_ms=60_000)
    await schedule(engine, "a")
    store.faults.append(fault)
    with pytest.raises(ShardUnavailable):
        await poll(engine)
    await engine.recovered()
    done = fault is Fault.UNKNOWN_DONE
    assert (held(engine, "a").state is ActivityState.STARTED) == done
    await engine.advance(9_000)
    await engine.beat("w", lease_ms=60_000)
    await engine.advance(3_000)
    [task] = await poll(engine)
    assert task.attempt == (2 if done else 1)


async def test_waiting_polls_survive_the_re_reading_of_shards(engine: Engine, store: FaultyStore) -> None:
    await engine.beat("w", lease_ms=60_000)
    open_poll = poll(engine)
    await waiting(engine, 1)
    store.faults.append(Fault.REJECTED)
    with pytest.raises(ShardUnavailable):
        await schedule(engine, "a")
    await engine.recovered()
    await schedule(engine, "a")
    [task] = await open_poll
    assert task.attempt == 1


async def test_available_activities_are_found_when_a_shard_is_opened_in_order_of_arrival(
    engine: Engine, store: FaultyStore
) -> None:
    await engine.beat("w", lease_ms=60_000)
    for name in ("c", "a", "b"):
        await schedule(engine, name)
        await engine.advance(100)
    await engine.stop()
    again = await Engine(store, engine.clock, grace_ms=0).start()
    [first] = await poll(again)
    assert first.attempt == 1
    assert len(await poll(again, limit=5)) == 2


async def test_an_activity_whose_holder_has_no_binding_becomes_available(engine: Engine) -> None:
    """Only the activity's side became durable: no worker runs it and no reschedule is pending."""
    await engine.beat("w", lease_ms=3_600_000)
    await schedule(engine, "a")
    shard = engine.ownership.shard(key("a"))
    shard.change_activity(
        key("a"), activity_decider.start(held(engine, "a"), "w", 1, shard.now_ms(), 1, floor=1)
    )
    await engine.advance(100_000)
    assert held(engine, "a").state is ActivityState.AVAILABLE
    assert held(engine, "a").attempt == 2


async def test_a_binding_to_an_activity_that_the_worker_does_not_hold_is_removed(
    engine: Engine,
) -> None:
    """Only the worker's side became durable, and the worker never received it."""
    await engine.beat("w", lease_ms=5_000)
    await schedule(engine, "a")
    engine.shard_of("w").change_worker(WORKER, worker_control.bind(held(engine, "a").bound()))
    await schedule(engine, "b")
    assert [task.id.activity_id for task in await poll(engine, limit=5)] == ["a", "b"]
    engine.shard_of("w").change_worker(
        WORKER, worker_control.bind(held(engine, "b").bound()._replace(attempt=7))
    )
    for _ in range(3):
        await engine.advance(2_000)
        await engine.beat("w", lease_ms=5_000, bound_activities=[activity("a")])
    assert [bound.activity_id for bound in engine.worker("w").bindings.values()] == ["a"]


async def test_a_binding_that_cannot_be_removed_now_is_removed_later(engine: Engine) -> None:
    """The caller left while the worker's shard was being re-read: the activity does not wait for it."""
    await engine.beat("w", lease_ms=20_000)
    name = next(str(n) for n in range(100) if engine.ownership.shard(key(str(n))) is not engine.shard_of("w"))
    await schedule(engine, name)
    [task] = await poll(engine)
    store_database = engine.shard_of("w")
    engine.node._shards[store_database.id] = None
    engine.ownership.withdraw(key(name), current_holder(task), "the poll that it was handed to had ended")
    engine.node._shards[store_database.id] = store_database
    assert (held(engine, name).state, held(engine, name).attempt) == (ActivityState.AVAILABLE, 2)
    assert len(engine.worker("w").bindings) == 1
    for _ in range(3):
        await engine.advance(10_000)
        await engine.beat("w", lease_ms=20_000)
    assert engine.worker("w").bindings == {}


async def test_a_claim_that_only_the_activity_recorded_is_repeated(
    engine: Engine, store: FaultyStore
) -> None:
    """The worker's shard was lost with the previous commit: the first claim fails, the second succeeds."""
    await engine.beat("w", lease_ms=60_000)
    name = next(str(n) for n in range(100) if engine.ownership.shard(key(str(n))) is not engine.shard_of("w"))
    spec = ActivitySpec("", "queue", b"", Retry())
    store.close_gate()
    store.faults.append(Fault.REJECTED)
    beat = asyncio.ensure_future(engine.beat("w", lease_ms=60_000))
    await store.reached.wait()
    claim = asyncio.ensure_future(engine.ownership.claim(key(name), spec, WORKER, ""))
    while not engine.worker("w").bindings:
        await asyncio.sleep(0)
    store.open_gate()
    for call in (beat, claim):
        with pytest.raises(ShardUnavailable):
            await call
    await engine.recovered()
    assert (held(engine, name).state, engine.worker("w").bindings) == (ActivityState.STARTED, {})
    again = await engine.ownership.claim(key(name), spec, WORKER, "")
    assert again.attempt == 2
    await engine.ownership.complete(key(name), AttemptHolder("w", 1, 2), b"")


async def test_an_activity_that_its_worker_unbound_can_be_claimed_again(engine: Engine) -> None:
    await engine.beat("w", lease_ms=60_000)
    spec = ActivitySpec("", "queue", b"", Retry())
    await engine.ownership.claim(key("a"), spec, WORKER, "")
    await engine.beat("w", lease_ms=60_000, unbound_activities=[activity("a")])
    assert (await engine.ownership.claim(key("a"), spec, WORKER, "")).attempt == 2
    await engine.queue.run_until_idle()
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 2), b"")


async def test_a_waiting_poll_is_served_when_its_worker_falls_below_the_quota(engine: Engine) -> None:
    engine.node.policies.replace("", {"max_bindings_per_worker": 1})
    await engine.beat("w", lease_ms=60_000)
    for name in ("a", "b", "c"):
        await schedule(engine, name)
    await poll(engine)
    ended = poll(engine)
    await poll_waiting(engine)
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 1), b"")
    assert [task.id.activity_id for task in await ended] == ["b"]
    unbound = poll(engine)
    await poll_waiting(engine)
    await engine.beat("w", lease_ms=60_000, unbound_activities=[activity("b")])
    assert [task.id.activity_id for task in await unbound] == ["c"]


async def test_an_activity_bound_without_a_queue_is_rescheduled_in_its_own_queue(engine: Engine) -> None:
    await engine.beat("w", lease_ms=1_000, task_queue="mine")
    await schedule(engine, "a", "its own")
    await poll(engine, "its own")
    await engine.beat("w", lease_ms=1_000, task_queue="mine", bound_activities=[activity("a", task_queue="")])
    await engine.advance(1_500)
    await engine.queue.run_until_idle()
    await engine.beat("other", lease_ms=60_000)
    [task] = await poll(engine, "its own", "other", wait_ms=0)
    assert task.attempt == 2


async def test_dispatch_verification_leaves_a_pending_reschedule_to_its_task(engine: Engine) -> None:
    """The reschedule task must count the death."""
    await engine.beat("w", lease_ms=1_000)
    await schedule(engine, "a")
    await poll(engine)
    await engine.advance(
        12_000
    )  # the lease is over and the dispatch was verified, but the queue has not run yet
    assert held(engine, "a").state is ActivityState.STARTED
    await engine.queue.run_until_idle()
    assert (held(engine, "a").state, held(engine, "a").deaths) == (ActivityState.AVAILABLE, 1)


async def test_a_lost_activity_that_was_bound_by_heartbeat_is_handed_out(engine: Engine) -> None:
    await engine.beat("own", lease_ms=1_000, bound_activities=[activity("a")])
    await engine.beat("w", lease_ms=60_000)
    await engine.advance(1_500)
    await engine.queue.run_until_idle()
    [task] = await poll(engine)
    assert (task.id.activity_id, task.attempt) == ("a", 2)
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 2), b"")
    assert held(engine, "a").state is ActivityState.COMPLETED
