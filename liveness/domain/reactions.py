"""react: (state, event) → what must happen later.

Timers are derived from state and never stored: when a timer fires, the decider examines the current state again.
Reschedules are stored, in the transaction that took the activity from its worker.
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
    """Verify that the worker received an activity that it was handed: the response may have been lost."""

    activity: ActivityKey


class ActivityDueTask(NamedTuple):
    """Make a WAITING activity available."""

    activity: ActivityKey


TimerTask = LeaseExpiryTask | WorkerCleanupTask


class ActivityRescheduleTask(NamedTuple):
    """One activity taken from one worker in one lease."""

    namespace: str
    activity: BoundActivity
    worker: str
    epoch: int
    died: bool = True
    """Whether the worker died with it. False if the worker unbound it or shut down in order."""


_ORDERLY_REASONS = (InactiveReason.SHUTDOWN, InactiveReason.FORCED, InactiveReason.DRAINED)


class RescheduleBatch(NamedTuple):
    """All `ActivityRescheduleTask`s of one event, kept as one value until they are stored: ten thousand leases with ten
    activities each may end at once."""

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
    """The timer that fires at the worker's `deadline_ms`. Maintenance, not a timer, deletes tombstones."""
    if worker.state is WorkerState.ACTIVE:
        return LeaseExpiryTask(key)
    if worker.state is WorkerState.INACTIVE:
        return WorkerCleanupTask(key)
    return None
