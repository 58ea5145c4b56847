"""Sample values, and a shard owner, for tests of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from liveness.domain.activity import Activity, ActivityState, ReleasedAttempt
from liveness.domain.events import Event, LeaseRenewed, Retry, WorkerDescribed
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.reactions import ActivityRescheduleTask, RescheduleBatch
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    BoundActivity,
    Profile,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.api import NewTaskBatch, ShardCommit, ShardSnapshot, TaskState, TaskUpdate
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState
from liveness.store.sql import SqlStore

NAMESPACE = "orders"
INT64_MAX = 2**63 - 1

WORKER = Worker(
    number=1,
    state=WorkerState.ACTIVE,
    session_id="session-1",
    sequence=1,
    epoch=1,
    granted_ms=30_000,
    renewed_ms=0,
    deadline_ms=30_000,
    bindings=NO_BINDINGS,
    lost=NO_BINDINGS,
    superseded=(),
    profile=NO_PROFILE,
    status=WorkerStatus.RUNNING,
    last_error="",
    successes=0,
    errors=0,
    resync=False,
    inactive_reason=None,
    inactive_detail="",
)


def key(name: str = "worker-1", namespace: str = NAMESPACE) -> WorkerKey:
    return WorkerKey(namespace, name)


def described(text: str = "") -> WorkerDescribed:
    """A minimal event that is stored as its own row."""
    return WorkerDescribed(profile=NO_PROFILE, status=WorkerStatus.RUNNING, last_error=text)


def renewals(*numbers: int, at_ms: int = 0) -> RenewalBatch:
    return RenewalBatch(list(numbers), [LeaseRenewed(1, at_ms, 0, 0) for _ in numbers])


def bound_activity(name: str = "charge", attempt: int = 1) -> BoundActivity:
    return BoundActivity("workflow", "run", name, attempt, "queue", b"token")


def reschedule(
    name: str = "charge", namespace: str = NAMESPACE, worker: str = "worker-1", *, died: bool = True
) -> ActivityRescheduleTask:
    return ActivityRescheduleTask(namespace, bound_activity(name), worker, 1, died)


def fan_out_of(task: ActivityRescheduleTask) -> RescheduleBatch:
    return RescheduleBatch(task.namespace, task.worker, task.epoch, task.died, (task.activity,))


def available(name: str = "charge") -> tuple[ActivityKey, Activity]:
    id = ActivityId("workflow", "run", name)
    activity = Activity(
        id, ActivityState.AVAILABLE, 2, "queue", b"token", (ReleasedAttempt("worker-1", 1, 1),)
    )
    return ActivityKey(NAMESPACE, *id), activity


def activity(
    name: str = "charge",
    state: ActivityState = ActivityState.AVAILABLE,
    namespace: str = NAMESPACE,
    workflow_id: str = "workflow",
    **fields: Any,
) -> tuple[ActivityKey, Activity]:
    """An activity that this service hands out; STARTED ones are held by worker-1."""
    id = ActivityId(workflow_id, "run", name)
    if state is ActivityState.STARTED:
        fields = {"worker": "worker-1", "epoch": 1} | fields
    known = Activity(id, state, 2, "queue", b"", (), "resize", b"input", Retry())
    return ActivityKey(namespace, *id), known._replace(**fields)


class About(NamedTuple):
    """An event and the worker or workflow it is about."""

    event: Event | RenewalBatch
    worker: WorkerKey | None = None
    workflow_id: str | None = None
    wall_ms: int | None = None
    namespace: str | None = None


class Owner:
    """The owner of a shard as the store sees it: it knows its epoch and head and commits after them."""

    def __init__(self, store: SqlStore, image: ShardSnapshot) -> None:
        self.store = store
        self.shard_id = image.shard_id
        self.epoch = image.epoch
        self.head = image.last_seq
        self.observed_ms = image.observed_ms
        self.wall_ms = 1_000_000

    @property
    def owned(self) -> dict[int, int]:
        return {self.shard_id: self.epoch}

    def draft(
        self,
        events: Iterable[About] = (),
        *,
        workers: Mapping[WorkerKey, Worker | None] | None = None,
        activities: Mapping[ActivityKey, Activity] | None = None,
        new_tasks: Iterable[ActivityRescheduleTask] = (),
        task_updates: Iterable[TaskUpdate] = (),
        config: Mapping[str, Mapping[str, float]] | None = None,
        checkpoint: list[RenewalState] | None = None,
        **changes: Any,
    ) -> ShardCommit:
        """Build the next commit without writing it. Worker rows carry the sequence of its last event."""
        entries = [
            LogEntry(
                self.head + index,
                about.worker.namespace if about.worker else about.namespace,
                about.worker.instance_key if about.worker else None,
                about.workflow_id,
                about.wall_ms or self.wall_ms,
                self.observed_ms,
                about.event,
            )
            for index, about in enumerate(events, 1)
        ]
        last_seq = self.head + len(entries)
        commit = ShardCommit(
            shard_id=self.shard_id,
            epoch=self.epoch,
            after_seq=self.head,
            last_seq=last_seq,
            observed_ms=self.observed_ms,
            wall_ms=self.wall_ms,
            entries=entries,
            workers={key: (worker, last_seq) if worker else None for key, worker in (workers or {}).items()},
            activities=dict(activities or {}),
            new_tasks=[NewTaskBatch([self.shard_id], fan_out_of(task)) for task in new_tasks],
            task_updates={update.task_id: update for update in task_updates},
            config=dict(config or {}),
            checkpoint=None if checkpoint is None else (last_seq, checkpoint),
        )
        for name, value in changes.items():
            setattr(commit, name, value)
        return commit

    async def commit(self, events: Iterable[About] = (), **parts: Any) -> ShardCommit:
        commit = self.draft(events, **parts)
        await self.store.commit([commit])
        self.head = commit.last_seq
        return commit


async def take(store: SqlStore, *shard_ids: int, owner: str = "node-1") -> list[Owner]:
    return [Owner(store, image) for image in await store.take_over(shard_ids, owner, 1_000)]


async def take_one(store: SqlStore, shard_id: int = 0) -> Owner:
    [owner] = await take(store, shard_id)
    return owner


async def snapshot_of(store: SqlStore, shard_id: int = 0) -> ShardSnapshot:
    [image] = await store.take_over([shard_id], "reader", 1_000)
    return image


def profile(**fields: Any) -> Profile:
    return NO_PROFILE._replace(**fields)


def finished(task_id: int, state: TaskState = TaskState.DONE) -> TaskUpdate:
    return TaskUpdate(task_id, state, due_ms=0, attempts=1, last_error="")
