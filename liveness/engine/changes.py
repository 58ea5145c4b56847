"""What a change of a worker means to others: to its row, to lists, to the worker itself, to people."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.events import (
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    DisconnectGraceGranted,
    DrainBegun,
    LeaseTermsChanged,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerPaused,
    WorkerResumed,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker, WorkerState

# These leave the worker's row as it is until the next checkpoint; recovery finds them in the log.
DEFERRED_ROW_EVENTS = (
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    DisconnectGraceGranted,
    DrainBegun,
    LeaseTermsChanged,
    WorkerDescribed,
    WorkerPaused,
    WorkerResumed,
)


class Transition(NamedTuple):
    """A change of a worker's state, for the structured log and the numbers."""

    key: WorkerKey
    before: WorkerState | None
    after: WorkerState | None
    reason: str
    activities: int
    """How many were taken from it."""
    due_ms: int | None = None
    """When it was due, on the shard's clock, if it was a matter of time."""


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
    """What answers to a worker tell it to do."""
    standing = worker.standing
    return (
        worker.state, worker.epoch, standing.paused, standing.draining, standing.drain_deadline_ms,
        worker.lost,
    )  # fmt: skip


def listing_fields(worker: Worker) -> tuple[str, str, str]:
    """What lists filter by; a row must always be right about it."""
    return worker.profile.task_queue, worker.profile.build_id, worker.profile.host_name
