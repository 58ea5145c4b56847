"""Matching: in turns, at once, and without losing anything when commits fail."""

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
    await engine.ownership.schedule(key(name), ActivitySpec("", task_queue, b"", Retry()), 0)


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
    """A poll waits, and matching has seen that it cannot be served."""
    await waiting(engine, 1)
    while engine.matching._scheduled_turn is not None:
        await asyncio.sleep(0)


def held(engine: Engine, name: str) -> Activity:
    found = engine.ownership.shard(key(name)).activities.get(key(name))
    assert found is not None
    return found


async def test_a_long_queue_holds_up_no_other(engine: Engine) -> None:
    """Six hundred polls wait for as many activities of one queue, one poll for one of another: it gets its turn."""
    await engine.beat("w")
    order: list[str] = []
    engine.node.policies.replace("", {"max_bindings_per_worker": 100_000})
    for name in ("many", "few"):
        await engine.beat(name)
    many = [schedule(engine, f"many-{number}", "many") for number in range(600)]
    await asyncio.gather(*many, schedule(engine, "few", "few"))
    crowd = [poll(engine, "many", "many") for _ in range(600)]
    lone = poll(engine, "few", "few")
    while len(engine.matching._polls) < 2:
        await asyncio.sleep(0)
    [alone] = engine.matching._polls[WorkerKey(NAMESPACE, "few")]
    alone.completion.add_done_callback(lambda _: order.append("few"))
    for one in engine.matching._polls[WorkerKey(NAMESPACE, "many")]:
        one.completion.add_done_callback(lambda _: order.append("many"))
    await asyncio.wait([lone, *crowd])
    assert held(engine, "few").state is ActivityState.STARTED
    assert order.index("few") < 300, "it did not have to wait for the whole crowd"


async def test_a_client_gone_wild_cannot_wait_without_end(
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


async def test_several_waiting_workers_share_what_comes(engine: Engine) -> None:
    for worker in ("a", "b"):
        await engine.beat(worker)
    for number in range(10):
        await schedule(engine, str(number))
    first, second = poll(engine, worker="a", limit=10), poll(engine, worker="b", limit=10)
    assert sorted((len(await first), len(await second))) == [5, 5]


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
async def test_a_commit_that_fails_hands_nobody_anything_for_good(
    engine: Engine, store: FaultyStore, fault: Fault
) -> None:
    """The poll is not answered. If the hand-out was committed all the same, it is found and taken back."""
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


async def test_polls_survive_the_re_reading_of_shards(engine: Engine, store: FaultyStore) -> None:
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


async def test_a_worker_that_is_bound_to_nothing_of_it_gives_it_up_in_the_end(engine: Engine) -> None:
    """Only the activity's side became durable: nobody works on it and no reschedule is on its way."""
    await engine.beat("w", lease_ms=3_600_000)
    await schedule(engine, "a")
    shard = engine.ownership.shard(key("a"))
    shard.change_activity(
        key("a"), activity_decider.start(held(engine, "a"), "w", 1, shard.now_ms(), 1, floor=1)
    )
    await engine.advance(100_000)
    assert held(engine, "a").state is ActivityState.AVAILABLE
    assert held(engine, "a").attempt == 2


async def test_a_worker_that_does_not_hold_what_it_is_bound_to_has_its_hand_free_in_the_end(
    engine: Engine,
) -> None:
    """Only the worker's side became durable, and the worker never heard of it."""
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


async def test_what_cannot_be_taken_from_its_worker_now_is_taken_from_it_later(engine: Engine) -> None:
    """The caller left, and the worker's shard is being read again just then: the activity need not wait for it."""
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


async def test_a_claim_that_only_the_activity_knows_of_is_made_anew(
    engine: Engine, store: FaultyStore
) -> None:
    """The worker's shard was lost with the commit before: the first claim is not answered, the second holds."""
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


async def test_a_claim_of_what_its_worker_let_go_of_is_made_anew(engine: Engine) -> None:
    await engine.beat("w", lease_ms=60_000)
    spec = ActivitySpec("", "queue", b"", Retry())
    await engine.ownership.claim(key("a"), spec, WORKER, "")
    await engine.beat("w", lease_ms=60_000, unbound_activities=[activity("a")])
    assert (await engine.ownership.claim(key("a"), spec, WORKER, "")).attempt == 2
    await engine.queue.run_until_idle()
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 2), b"")


async def test_a_waiting_poll_is_served_once_its_worker_has_room_again(engine: Engine) -> None:
    engine.node.policies.replace("", {"max_bindings_per_worker": 1})
    await engine.beat("w", lease_ms=60_000)
    for name in ("a", "b", "c"):
        await schedule(engine, name)
    await poll(engine)
    ended = poll(engine)
    await poll_waiting(engine)
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 1), b"")
    assert [task.id.activity_id for task in await ended] == ["b"]
    let_go = poll(engine)
    await poll_waiting(engine)
    await engine.beat("w", lease_ms=60_000, unbound_activities=[activity("b")])
    assert [task.id.activity_id for task in await let_go] == ["c"]


async def test_what_its_worker_named_without_its_queue_moves_on_in_its_own(engine: Engine) -> None:
    await engine.beat("w", lease_ms=1_000, task_queue="mine")
    await schedule(engine, "a", "its own")
    await poll(engine, "its own")
    await engine.beat("w", lease_ms=1_000, task_queue="mine", bound_activities=[activity("a", task_queue="")])
    await engine.advance(1_500)
    await engine.queue.run_until_idle()
    await engine.beat("other", lease_ms=60_000)
    [task] = await poll(engine, "its own", "other", wait_ms=0)
    assert task.attempt == 2


async def test_a_reschedule_that_is_still_on_its_way_is_not_forestalled(engine: Engine) -> None:
    """The death must be counted, and counting it is the task's."""
    await engine.beat("w", lease_ms=1_000)
    await schedule(engine, "a")
    await poll(engine)
    await engine.advance(12_000)  # the lease is over; verification has looked, the queue was not worked off
    assert held(engine, "a").state is ActivityState.STARTED
    await engine.queue.run_until_idle()
    assert (held(engine, "a").state, held(engine, "a").deaths) == (ActivityState.AVAILABLE, 1)


async def test_what_a_worker_bound_by_itself_is_handed_out_once_it_was_lost(engine: Engine) -> None:
    await engine.beat("own", lease_ms=1_000, bound_activities=[activity("a")])
    await engine.beat("w", lease_ms=60_000)
    await engine.advance(1_500)
    await engine.queue.run_until_idle()
    [task] = await poll(engine)
    assert (task.id.activity_id, task.attempt) == ("a", 2)
    await engine.ownership.complete(key("a"), AttemptHolder("w", 1, 2), b"")
    assert held(engine, "a").state is ActivityState.COMPLETED
