"""react: (state, event) → what must happen later.

Timers are derived from a worker's state and never stored; a timer is a promise to look again, and what it finds
then is decided anew. Reschedules are stored, in the transaction that took the activity from its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from liveness.domain.decider import lost_with
from liveness.domain.events import BindingsChanged, WorkerDeactivated, WorkerEvent
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, InactiveReason, Worker, WorkerState


class LeaseExpiryTask(NamedTuple):
    """End the worker's lease, if it is over."""

    worker: WorkerKey


class WorkerCleanupTask(NamedTuple):
    worker: WorkerKey


class VerifyDispatchTask(NamedTuple):
    """Look whether the worker heard of an activity that it was handed: the answer may have been lost on its way."""

    activity: ActivityKey


class ActivityDueTask(NamedTuple):
    """A delayed or failed activity's time has come."""

    activity: ActivityKey


TimerTask = LeaseExpiryTask | WorkerCleanupTask


class ActivityRescheduleTask(NamedTuple):
    """One activity taken from one worker in one lease."""

    namespace: str
    activity: BoundActivity
    worker: str
    epoch: int
    died: bool = True
    """Whether the worker was lost with it, rather than let go of it or left in order."""


_ORDERLY_REASONS = (InactiveReason.SHUTDOWN, InactiveReason.FORCED, InactiveReason.DRAINED)


class RescheduleBatch(NamedTuple):
    """An `ActivityRescheduleTask` for each activity that one event took from a worker. They stay together until they
    are stored: ten thousand leases may end at once, with ten activities each."""

    namespace: str
    worker: str
    epoch: int
    died: bool
    activities: tuple[BoundActivity, ...]

    def tasks(self) -> Iterator[ActivityRescheduleTask]:
        for activity in self.activities:
            yield ActivityRescheduleTask(self.namespace, activity, self.worker, self.epoch, self.died)


def react(key: WorkerKey, before: Worker | None, event: WorkerEvent) -> RescheduleBatch | None:
    if before is None or not (taken := lost_with(before, event)):
        return None
    orderly = isinstance(event, BindingsChanged) or (
        isinstance(event, WorkerDeactivated) and event.reason in _ORDERLY_REASONS
    )
    return RescheduleBatch(key.namespace, key.instance_key, before.epoch, not orderly, tuple(taken.values()))


def worker_timer(key: WorkerKey, worker: Worker) -> TimerTask | None:
    """What the worker's `deadline_ms` is for. Tombstones end by maintenance, not by the second."""
    if worker.state is WorkerState.ACTIVE:
        return LeaseExpiryTask(key)
    if worker.state is WorkerState.INACTIVE:
        return WorkerCleanupTask(key)
    return None
