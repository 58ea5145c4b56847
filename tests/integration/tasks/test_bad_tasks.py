"""A task that cannot be executed ends among the dead letters and stops no other task of its shard."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from liveness.clock import ManualClock
from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey, WorkerKey, shard_of
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.worker import BoundActivity
from liveness.store.api import StoredTask, TaskState
from liveness.store.sql import SqlStore
from liveness.tasks.activity_reschedule import ActivityReschedule
from liveness.tasks.queue_runner import BACKOFF_MS_MAX, QueueRunner
from liveness.v1 import service_pb2
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine

ATTEMPTS_MAX = 3


class Sink:
    def __init__(self) -> None:
        self.offered: list[str] = []

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        self.offered.append(key.workflow_id)


@pytest.fixture
async def store(store_database: StoreDatabase) -> SqlStore:
    store = SqlStore(store_database.connect())
    await store.open(SHARD_COUNT, "tests")
    return store


async def lose(engine: Engine, *workflow_ids: str, queues: Mapping[str, str] | None = None) -> None:
    """Let a worker die with these activities. A NUL gets past the validation of calls here, as it once did between nodes."""
    await engine.beat("w")
    responder = RemoteOwnershipResponder(engine.node)
    bound = [BoundActivity(id, "r", "a", 1, (queues or {}).get(id, "queue"), b"") for id in workflow_ids]
    await responder.bind(WorkerKey(NAMESPACE, "w"), "", bound)
    await engine.liveness.shutdown_worker(
        service_pb2.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key="w")
    )


async def tasks_of(store: SqlStore) -> dict[str, StoredTask]:
    found = await store.list_tasks(None, list(TaskState), 0, 1_000)
    return {stored.task.activity.workflow_id: stored for stored in found}


def ids_of_one_shard(*candidates: str) -> tuple[str, ...]:
    """Returns the candidates with endings that put all of them on one shard."""
    return tuple(
        next(
            name
            for name in (f"{candidate}{number}" for number in range(1_000))
            if shard_of(NAMESPACE, name, SHARD_COUNT) == 0
        )
        for candidate in candidates
    )


async def test_a_task_with_a_name_that_the_database_refuses_stops_no_other(store: SqlStore) -> None:
    sink = Sink()
    engine = await Engine(store, ManualClock(), sink=sink, attempts_max=ATTEMPTS_MAX).start()
    bad, good, other = ids_of_one_shard("bad\0", "good", "other")
    await lose(engine, bad, good, other)
    await engine.queue.run_until_idle()
    found = await tasks_of(store)
    assert {found[good].state, found[other].state} == {TaskState.DONE}
    assert {good, other} <= set(sink.offered)
    if found[bad].state is TaskState.DONE:
        assert bad in sink.offered, "SQLite stores any text"
        await engine.stop()
        return
    assert (found[bad].state, found[bad].attempts) == (TaskState.RETRYING, 1)
    for _ in range(ATTEMPTS_MAX - 1):
        await engine.advance(BACKOFF_MS_MAX)
        await engine.queue.run_until_idle()
    dead = (await tasks_of(store))[bad]
    assert (dead.state, dead.attempts) == (TaskState.DEAD_LETTERED, ATTEMPTS_MAX)
    assert "ValueRefused" in dead.last_error
    await engine.stop()


async def test_a_task_that_raises_an_unknown_error_fails_alone(store: SqlStore) -> None:
    sink = Sink()
    engine = await Engine(store, ManualClock()).start()

    def select_sink(namespace: str, task_queue: str) -> Sink:
        if task_queue == "unknown":
            raise KeyError("no such sink")
        return sink

    queue = QueueRunner(
        engine.node,
        engine.ownership,
        ActivityReschedule(select_sink),
        attempts_max=ATTEMPTS_MAX,
        random=Random(7),
    )
    bad, good = ids_of_one_shard("bad", "good")
    await lose(engine, bad, good, queues={bad: "unknown"})
    for _ in range(ATTEMPTS_MAX):
        queue.wake_all()
        await queue.run_until_idle()
        await engine.step(BACKOFF_MS_MAX)
    found = await tasks_of(store)
    assert (found[good].state, found[bad].state) == (TaskState.DONE, TaskState.DEAD_LETTERED)
    assert found[bad].last_error == "KeyError: 'no such sink'"
    await engine.stop()
