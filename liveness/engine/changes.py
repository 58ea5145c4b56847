"""The consequences of a change of a worker: for its row, for lists, for the orders that it gets, for logs and metrics."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.events import (
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    ComponentChanged,
    ComponentOrdersDone,
    ComponentsOrdered,
    DisconnectGraceGranted,
    DrainBegun,
    EntryChanged,
    LeaseTermsChanged,
    ReplicaLeft,
    ReplicaSeen,
    WorkerAdopted,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerPaused,
    WorkerResumed,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker, WorkerState

# These events leave the worker's row as it is until the next checkpoint; recovery finds them in the log.
DEFERRED_ROW_EVENTS = (
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    ComponentChanged,
    ComponentOrdersDone,
    ComponentsOrdered,
    DisconnectGraceGranted,
    DrainBegun,
    EntryChanged,
    LeaseTermsChanged,
    ReplicaLeft,
    ReplicaSeen,
    WorkerAdopted,
    WorkerDescribed,
    WorkerPaused,
    WorkerResumed,
)


class Transition(NamedTuple):
    """A change of a worker's state, for the structured log and the metrics."""

    key: WorkerKey
    before: WorkerState | None
    after: WorkerState | None
    reason: str
    activities: int
    """The number of activities that were taken from the worker."""
    due_ms: int | None = None
    """On the shard's clock: when the change was due, if time caused it."""


def transition_of(
    key: WorkerKey, before: Worker | None, event: WorkerEvent, after: Worker | None, activities: int
) -> Transition:
    reason = event.reason.name if isinstance(event, WorkerDeactivated) else type(event).__name__
    return Transition(key, before and before.state, after and after.state, reason, activities)


def earliest_deadline_ms(worker: Worker) -> int:
    """The earliest of a worker's own deadlines."""
    drain_ms = worker.standing.drain_deadline_ms
    return min(worker.deadline_ms, drain_ms) if drain_ms else worker.deadline_ms


def orders_of(worker: Worker) -> tuple[object, ...]:
    """Everything that replies to a worker may order it to do. Replies change when this changes."""
    standing = worker.standing
    return (
        worker.state, worker.epoch, standing.paused, standing.draining, standing.drain_deadline_ms,
        worker.lost, standing.orders,
    )  # fmt: skip


def listing_fields(worker: Worker) -> tuple[object, ...]:
    """The fields by which lists filter, and what lists of components show. A worker's row must always have their current values."""
    profile, standing = worker.shared.profile, worker.standing
    return profile.task_queue, profile.build_id, profile.host_name, standing.component, standing.orders
