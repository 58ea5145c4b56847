"""The stored queue: lost activities are rescheduled whatever happens in between."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.clock import ManualClock
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import ActivitySpec, current_holder
from liveness.domain.errors import ShardUnavailable
from liveness.domain.events import Retry
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.store.api import ActivityFilter, TaskState
from liveness.store.schema import tasks
from liveness.tasks import queue_runner
from liveness.tasks.queue_runner import BACKOFF_MS_MAX, BACKOFF_MS_MIN, backoff_ms
from liveness.tasks.sinks import SinkDown
from liveness.v1 import service_pb2, worker_pb2
from tests.databases import StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine, activity
from tests.integration.store.faulty_store import Fault, FaultyStore

ALL = list(TaskState)


class Sink:
    def __init__(self) -> None:
        self.offered: list[tuple[str, int]] = []
        self.fails = 0

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("not now")
        self.offered.append((key.activity_id, activity.attempt))


@given(st.integers(1, 10_000), st.integers())
def test_the_backoff_doubles_up_to_a_limit_with_jitter(attempts: int, seed: int) -> None:
    wait_ms = backoff_ms(attempts, Random(seed))
    ceiling = min(BACKOFF_MS_MIN * 2 ** min(attempts - 1, 40), BACKOFF_MS_MAX)
    assert ceiling // 2 <= wait_ms <= ceiling


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    return store


async def engine_on(store: FaultyStore, sink: Sink | None = None, attempts_max: int = 20) -> Engine:
    return await Engine(store, ManualClock(), sink=sink or Sink(), attempts_max=attempts_max).start()


async def lose(engine: Engine, *activities: worker_pb2.ActivityRef, worker: str = "w") -> None:
    await engine.beat(worker, bound_activities=activities)
    await shut_down(engine, worker)


async def shut_down(engine: Engine, worker: str = "w") -> None:
    await engine.liveness.shutdown_worker(
        service_pb2.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker)
    )


async def states(store: FaultyStore) -> list[TaskState]:
    return [task.state for task in await store.list_tasks(None, ALL, 0, 1_000)]


async def test_a_lost_activity_becomes_available_with_its_next_attempt(store: FaultyStore) -> None:
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"))
    assert await states(store) == [TaskState.PENDING]
    await engine.queue.run_until_idle()
    assert sink.offered == [("a", 2)]
    assert await states(store) == [TaskState.DONE]
    await engine.stop()


DAMAGES = {
    "another activity": "activity = replace(activity, '\"a\"', '\"x\"')",
    "another epoch": "lease_epoch = lease_epoch + 1",
    "no JSON": "activity = '{'",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_row_is_dead_lettered_as_it_is_and_its_queue_goes_on(
    store: FaultyStore, store_database: StoreDatabase, damage: str
) -> None:
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"))
    [damaged] = await store.list_tasks(None, ALL, 0, 10)
    where = f"WHERE task_id = {damaged.task_id}"
    assert await store_database.execute(f"UPDATE tasks SET {DAMAGES[damage]} {where}") == 1
    [raw] = (await store_database.dump())["tasks"]
    await lose(engine, *(activity(str(number)) for number in range(20)), worker="w2")
    await engine.queue.run_until_idle()
    assert sorted(sink.offered) == sorted((str(number), 2) for number in range(20))
    [dead] = await store.list_tasks(None, [TaskState.DEAD_LETTERED], 0, 10)
    assert (dead.task_id, dead.attempts) == (damaged.task_id, 1)
    assert "is damaged" in dead.last_error
    bookkeeping = {"state", "due_ms", "attempts", "last_error", "finished_wall_ms"}
    [kept] = [row for row in (await store_database.dump())["tasks"] if row[0] == damaged.task_id]
    changed = {
        column.name
        for column, *values in zip(tasks.columns, raw, kept, strict=True)
        if values[0] != values[1]
    }
    assert changed <= bookkeeping, "the row is kept"
    await engine.stop()


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("column", ["activity", "kind", "namespace", "worker_key"])
async def test_a_row_that_is_no_text_is_dead_lettered(
    store: FaultyStore, store_database: StoreDatabase, column: str
) -> None:
    """SQLite stores any bytes as text; its driver cannot read them as such."""
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"), activity("b"))
    await store_database.execute(f"UPDATE tasks SET {column} = CAST(x'ff7b' AS TEXT) WHERE task_id = 1")
    await engine.queue.run_until_idle()
    assert len(sink.offered) == 1
    [dead] = await store.list_tasks(None, [TaskState.DEAD_LETTERED], 0, 10)
    assert (dead.task_id, dead.attempts) == (1, 1)
    assert "utf-8" in dead.last_error
    [count] = [
        count for count in await store.count_tasks([dead.shard_id]) if count.state is TaskState.DEAD_LETTERED
    ]
    assert (count.tasks, count.namespace) == (1, dead.task.namespace)
    if column == "namespace":
        assert count.namespace == "\\xff{", "it can be shown"
    await engine.stop()


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_task_whose_last_error_is_no_text_is_executed(
    store: FaultyStore, store_database: StoreDatabase
) -> None:
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"), activity("b"))
    await store_database.execute("UPDATE tasks SET last_error = CAST(x'ff7b' AS TEXT) WHERE task_id = 1")
    assert {task.last_error for task in await store.list_tasks(None, ALL, 0, 10)} == {"\\xff{", ""}
    await engine.queue.run_until_idle()
    assert sorted(sink.offered) == [("a", 2), ("b", 2)]
    assert await states(store) == [TaskState.DONE, TaskState.DONE]
    await engine.stop()


async def test_a_sink_that_hangs_for_one_activity_does_not_block_others(store: FaultyStore) -> None:
    class Hanging(Sink):
        async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
            if key.activity_id == "a":
                await asyncio.Event().wait()
            await super().deliver(key, activity, task)

    sink = Hanging()
    engine = await engine_on(store, sink)
    engine.queue.delivery_timeout_s = 0.05
    await lose(engine, activity("a"), activity("b"))
    await engine.queue.run_until_idle()
    assert sink.offered == [("b", 2)]
    assert sorted(await states(store)) == [TaskState.RETRYING, TaskState.DONE]
    await engine.stop()


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
@pytest.mark.parametrize("index", [0, 1])
async def test_an_interrupted_task_is_finished_later_and_has_one_effect(
    store: FaultyStore, fault: Fault, index: int
) -> None:
    """The commit of the release or that of the record fails: the sink may be called twice, the activity moves
    once."""
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"), activity("b"))
    store.faults.extend([*[Fault.NONE] * index, fault])
    await engine.queue.run_until_idle()
    await engine.recovered()
    await engine.advance(1_000)
    await engine.queue.run_until_idle()
    assert set(sink.offered) == {("a", 2), ("b", 2)}, "the attempt rises once, however often the task runs"
    assert set(await states(store)) == {TaskState.DONE}
    moved = await store.list_activities(NAMESPACE, ActivityFilter(), None, 10)
    assert [row.activity.attempt for row in moved] == [2, 2]
    await engine.stop()


async def test_reschedules_of_a_commit_with_an_unknown_outcome_are_found(
    store: FaultyStore,
) -> None:
    """The commit of the activity's own shard did not fail, so that shard is not re-read."""
    sink = Sink()
    engine = await engine_on(store, sink)
    names = [f"a{number}" for number in range(8)]
    await engine.beat(bound_activities=[activity(name) for name in names])
    await engine.queue.run_until_idle()
    store.faults.append(Fault.UNKNOWN_DONE)
    with pytest.raises(ShardUnavailable):
        await shut_down(engine)
    await engine.recovered()
    await engine.queue.run_until_idle()
    assert sorted(sink.offered) == [(name, 2) for name in names]
    await engine.stop()


async def test_a_shard_dropped_during_a_delivery_does_not_disturb_its_successor(
    store: FaultyStore,
) -> None:
    """The runner still has the dropped shard; its record there must not replace the new shard."""
    engine: Engine

    class Slow(Sink):
        async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
            if not self.offered:
                store.faults.append(Fault.REJECTED)
                for shard in engine.node.shards():
                    engine.node.committer.mark_dirty(shard)
                await engine.node.barrier().wait()
                await engine.recovered()
            await super().deliver(key, activity, task)

    sink = Slow()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"))
    epochs = {shard.id: shard.epoch for shard in engine.node.shards()}
    await engine.queue.run_until_idle()
    await engine.advance(1_000)
    await engine.queue.run_until_idle()
    assert await states(store) == [TaskState.DONE]
    assert all(shard.epoch == epochs[shard.id] + 1 for shard in engine.node.shards()), "dropped only once"
    await engine.stop()


async def test_a_crash_between_release_and_record_repeats_only_the_delivery(
    store: FaultyStore,
) -> None:
    reached = asyncio.Event()

    class Hanging(Sink):
        async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
            reached.set()
            await asyncio.Event().wait()

    engine = await engine_on(store, Hanging())
    await lose(engine, activity("a"))
    working = asyncio.create_task(engine.queue.run_until_idle())
    await reached.wait()
    working.cancel()
    await engine.crash()
    assert await states(store) == [TaskState.PENDING]
    sink = Sink()
    engine = await engine_on(store, sink)
    await engine.queue.run_until_idle()
    assert sink.offered == [("a", 2)]
    assert await states(store) == [TaskState.DONE]
    await engine.stop()


async def test_attempts_are_counted_over_a_restart_until_the_task_is_dead_lettered(
    store: FaultyStore,
) -> None:
    sink = Sink()
    sink.fails = 3
    engine = await engine_on(store, sink, attempts_max=3)
    await lose(engine, activity("a"))
    for _ in range(2):
        await engine.queue.run_until_idle()
        await engine.advance(5_000)
    await engine.stop()
    engine = await engine_on(store, sink, attempts_max=3)
    await engine.queue.run_until_idle()
    assert await states(store) == [TaskState.DEAD_LETTERED]
    await engine.advance(10_000)
    await engine.queue.run_until_idle()
    assert sink.offered == []
    await engine.stop()


async def test_more_tasks_than_one_batch_are_all_run(store: FaultyStore) -> None:
    sink = Sink()
    engine = await engine_on(store, sink)
    for number in range(8):
        await lose(engine, *(activity(f"{number}-{index}") for index in range(150)), worker=f"w{number}")
    await engine.queue.run_until_idle()
    assert len(sink.offered) == len(set(sink.offered)) == 1_200
    await engine.stop()


async def test_a_task_for_an_earlier_loss_is_stale_after_a_later_one(store: FaultyStore) -> None:
    """A later holder lost the activity since; the earlier loss has no effect."""
    sink = Sink()
    engine = await engine_on(store, sink)
    await lose(engine, activity("a"))
    sink.fails = 1
    await engine.queue.run_until_idle()  # released, but the delivery failed; the task waits for its retry
    await lose(engine, activity("a", attempt=2), worker="other")
    await engine.queue.run_until_idle()
    assert sink.offered == [("a", 3)]
    await engine.advance(1_000)
    await engine.queue.run_until_idle()
    assert sink.offered == [("a", 3)], "attempt 2 is no longer delivered"
    assert await states(store) == [TaskState.DONE, TaskState.DONE]
    await engine.stop()


async def test_an_unavailable_sink_uses_no_attempts_and_one_write_per_task(store: FaultyStore) -> None:
    """For any outage; when the sink is back, all tasks are delivered at once."""

    class Away(Sink):
        away = True
        asked = 0

        async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
            self.asked += 1
            if self.away:
                raise SinkDown("not reachable")
            await super().deliver(key, activity, task)

    sink = Away()
    engine = await engine_on(store, sink, attempts_max=1)
    engine.queue._is_sink_down = lambda: sink.away
    await lose(engine, *(activity(str(number)) for number in range(20)))
    for _ in range(2):
        await engine.queue.run_until_idle()
        await engine.advance(400_000)
    assert sink.asked == 20
    waiting = await store.list_tasks(None, ALL, 0, 100)
    assert {(task.state, task.attempts, task.last_error) for task in waiting} == {
        (TaskState.RETRYING, 0, "not reachable")
    }
    sink.away = False
    engine.queue.wake_all()
    await engine.queue.run_until_idle()
    assert len(sink.offered) == 20
    assert set(await states(store)) == {TaskState.DONE}
    await engine.stop()


# -- many new tasks: those of all shards, in the order of their ids


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few tasks are many: several turns, of several batches, of several slices."""
    for name, value in {
        "NEW_TASKS_MIN": 4,
        "BATCHES_PER_TURN": 3,
        "BATCH_SIZE": 5,
        "TASKS_PER_SLICE": 2,
    }.items():
        monkeypatch.setattr(queue_runner, name, value)


WORKERS, HELD = 6, 7


async def lose_many(engine: Engine) -> list[tuple[str, int]]:
    """Returns the activities, with their next attempts."""
    for worker in range(WORKERS):
        names = [f"{worker}-{number}" for number in range(HELD)]
        await lose(engine, *map(activity, names), worker=f"w{worker}")
    return sorted((f"{worker}-{number}", 2) for worker in range(WORKERS) for number in range(HELD))


async def moved(store: FaultyStore) -> list[tuple[str, int]]:
    found = await store.list_activities(NAMESPACE, ActivityFilter(), None, 1_000)
    assert {row.activity.state for row in found} == {ActivityState.AVAILABLE}
    return sorted((row.key.activity_id, row.activity.attempt) for row in found)


async def engine_without_sink(store: FaultyStore) -> Engine:
    return await Engine(store, ManualClock()).start()


@pytest.mark.usefixtures("small_batches")
async def test_many_new_tasks_are_executed_over_all_shards(store: FaultyStore) -> None:
    engine = await engine_without_sink(store)
    attempts: list[int] = []
    engine.queue._on_attempt = lambda stored, update, via: attempts.append(stored.task_id)
    wanted = await lose_many(engine)
    await engine.queue.run_until_idle()
    assert await moved(store) == wanted
    assert set(await states(store)) == {TaskState.DONE}
    assert len(attempts) == len(set(attempts)) == len(wanted), "each is attempted once"
    await engine.stop()


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
@pytest.mark.parametrize("index", [0, 2])
async def test_many_new_tasks_that_are_interrupted_are_finished_later_and_have_one_effect(
    store: FaultyStore, fault: Fault, index: int
) -> None:
    engine = await engine_without_sink(store)
    wanted = await lose_many(engine)
    store.faults.extend([*[Fault.NONE] * index, fault])
    await engine.queue.run_until_idle()
    await engine.recovered()
    await engine.advance(1_000)
    await engine.queue.run_until_idle()
    assert await moved(store) == wanted
    assert set(await states(store)) == {TaskState.DONE}
    await engine.stop()


@pytest.mark.usefixtures("small_batches")
async def test_a_damaged_row_among_many_new_tasks_stops_no_other(
    store: FaultyStore, store_database: StoreDatabase
) -> None:
    engine = await engine_without_sink(store)
    wanted = await lose_many(engine)
    damaged = (await store.list_tasks(None, ALL, 0, 100))[9]
    await store_database.execute(f"UPDATE tasks SET activity = '{{' WHERE task_id = {damaged.task_id}")
    await engine.queue.run_until_idle()
    [dead] = await store.list_tasks(None, [TaskState.DEAD_LETTERED], 0, 10)
    assert dead.task_id == damaged.task_id
    assert await moved(store) == [one for one in wanted if one[0] != damaged.task.activity.activity_id]
    await engine.stop()


@pytest.mark.usefixtures("small_batches")
async def test_a_sink_is_given_each_of_many_new_tasks_once(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_runner, "DELIVERING_PER_SHARD_MAX", 2)
    sink = Sink()
    engine = await engine_on(store, sink)
    wanted = await lose_many(engine)
    await engine.queue.run_until_idle()
    assert sorted(sink.offered) == wanted
    assert set(await states(store)) == {TaskState.DONE}
    await engine.stop()


@pytest.mark.usefixtures("small_batches")
async def test_many_new_tasks_that_are_being_delivered_are_not_taken_again(store: FaultyStore) -> None:
    class Slow(Sink):
        all_offered = asyncio.Event()

        async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
            await super().deliver(key, activity, task)
            if len(self.offered) == WORKERS * HELD:
                self.all_offered.set()
            await self.all_offered.wait()

    sink = Slow()
    engine = await engine_on(store, sink)
    wanted = await lose_many(engine)
    await engine.queue.run_until_idle()
    assert sorted(sink.offered) == wanted
    await engine.stop()


async def test_a_task_about_a_finished_activity_that_left_memory_is_stale(store: FaultyStore) -> None:
    engine = await engine_without_sink(store)
    ref = activity("a")
    key = ActivityKey(NAMESPACE, ref.workflow_id, ref.run_id, ref.activity_id)
    await engine.beat("w", session_id="s", sequence=1)
    spec = ActivitySpec("", "queue", b"", Retry())
    claimed = await engine.ownership.claim(key, spec, WorkerKey(NAMESPACE, "w"), "s")
    await engine.ownership.complete(key, current_holder(claimed), b"")
    shard = engine.node.shard(NAMESPACE, ref.workflow_id)
    assert shard.activities.evict(shard.durable_seq) == 1
    await lose(engine, ref, worker="late")
    await engine.queue.run_until_idle()
    assert await states(store) == [TaskState.DONE]
    assert shard.activities[key].state is ActivityState.COMPLETED
    await engine.stop()
