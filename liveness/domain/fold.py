"""evolve: (state, event) → state. Total over events that `decider` can produce; reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from types import MappingProxyType

from liveness.domain.decider import lost_with
from liveness.domain.events import (
    Activation,
    BindingsChanged,
    LeaseRenewed,
    LeaseTermsChanged,
    SessionReplaced,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
)
from liveness.domain.keys import ActivityId
from liveness.domain.worker import (
    LOST_MAX,
    NO_BINDINGS,
    NO_PROFILE,
    SUPERSEDED_SESSIONS_MAX,
    BoundActivity,
    Worker,
    WorkerState,
    WorkerStatus,
)

ACTIVE = WorkerState.ACTIVE


class ImpossibleEvent(Exception):
    """The log holds an event that cannot follow the one before it: the log or this program is broken."""


def evolve(worker: Worker | None, event: WorkerEvent, sequence: int) -> Worker | None:
    """The next state. `sequence` is the event's place in the shard's log; it numbers a new worker."""
    if worker is None:
        if not isinstance(event, WorkerRegistered):
            raise ImpossibleEvent(f"{type(event).__name__} about a worker that was never registered")
        return _activated(None, event, sequence)
    if isinstance(event, LeaseRenewed):
        return renewed(worker, event)
    return _evolve(event, worker)


def renewed(worker: Worker, event: LeaseRenewed) -> Worker:
    """`evolve` for the event that is nearly all of them: spelled out in field order, past the generated constructor."""
    (number, state, session_id, sequence, epoch, granted_ms, _, _, bindings, lost, superseded, profile, status,
     last_error, _, _, resync, reason, detail) = worker  # fmt: skip
    if state is not ACTIVE:
        raise ImpossibleEvent(f"LeaseRenewed about a worker that is {state.name}")
    new_sequence, at_ms, successes, errors = event
    return tuple.__new__(Worker, (
        number, state, session_id, new_sequence, epoch, granted_ms, at_ms, at_ms + granted_ms, bindings, lost,
        superseded, profile, status, last_error, successes, errors, resync or new_sequence > sequence + 1 > 1, reason,
        detail,
    ))  # fmt: skip


@singledispatch
def _evolve(event: object, worker: Worker) -> Worker | None:
    raise ImpossibleEvent(f"{type(event).__name__} is not about a worker")


@_evolve.register
def _(event: Activation, worker: Worker) -> Worker:
    if isinstance(event, WorkerRegistered):
        raise ImpossibleEvent("WorkerRegistered about a worker that exists")
    expected = WorkerState.ACTIVE if isinstance(event, SessionReplaced) else WorkerState.INACTIVE
    if worker.state is not expected:
        raise ImpossibleEvent(f"{type(event).__name__} about a worker that is {worker.state.name}")
    return _activated(worker, event, worker.number)


def _activated(worker: Worker | None, event: Activation, number: int) -> Worker:
    superseded = worker.superseded if worker else ()
    if worker and worker.session_id and worker.session_id != event.session_id:
        superseded = (*superseded, worker.session_id)[-SUPERSEDED_SESSIONS_MAX:]
    return Worker(
        number=number,
        state=WorkerState.ACTIVE,
        session_id=event.session_id,
        sequence=event.sequence,
        epoch=event.epoch,
        granted_ms=event.granted_ms,
        renewed_ms=event.at_ms,
        deadline_ms=event.at_ms + event.granted_ms,
        bindings=_by_id({}, event.bindings),
        # A replaced session's process is gone and has nothing left to cancel.
        lost=worker.lost if worker and worker.state is WorkerState.INACTIVE else NO_BINDINGS,
        superseded=superseded,
        profile=event.profile,
        status=event.status,
        last_error=event.last_error,
        successes=event.successes,
        errors=event.errors,
        resync=event.resync,
        inactive_reason=None,
        inactive_detail="",
    )


@_evolve.register
def _(event: LeaseTermsChanged, worker: Worker) -> Worker:
    return worker._replace(granted_ms=event.granted_ms, deadline_ms=worker.renewed_ms + event.granted_ms)


@_evolve.register
def _(event: BindingsChanged, worker: Worker) -> Worker:
    gone = set(event.unbound)
    kept = (
        {id: activity for id, activity in worker.bindings.items() if id not in gone}
        if gone
        else worker.bindings
    )
    lost = worker.lost
    if lost and gone:
        lost = freeze({id: activity for id, activity in lost.items() if id not in gone})
    return worker._replace(bindings=_by_id(kept, event.bound), lost=lost, resync=event.resync)


@_evolve.register
def _(event: WorkerDescribed, worker: Worker) -> Worker:
    return worker._replace(profile=event.profile, status=event.status, last_error=event.last_error)


@_evolve.register
def _(event: WorkerDeactivated, worker: Worker) -> Worker:
    if worker.state is not WorkerState.ACTIVE:
        raise ImpossibleEvent(f"WorkerDeactivated about a worker that is {worker.state.name}")
    return worker._replace(
        state=WorkerState.INACTIVE,
        deadline_ms=event.at_ms + event.cleanup_delay_ms,
        bindings=NO_BINDINGS,
        lost=_lost(worker, lost_with(worker, event)),
        resync=False,
        inactive_reason=event.reason,
        inactive_detail=event.detail,
    )


def _lost(worker: Worker, taken: Mapping[ActivityId, BoundActivity]) -> Mapping[ActivityId, BoundActivity]:
    earlier = {id: activity for id, activity in worker.lost.items() if id not in taken}
    if len(earlier) + len(taken) > LOST_MAX:
        earlier = dict(list(earlier.items())[len(earlier) + len(taken) - LOST_MAX :])
    return freeze({**earlier, **taken})


@_evolve.register
def _(event: WorkerCleanedUp, worker: Worker) -> Worker:
    if worker.state is not WorkerState.INACTIVE:
        raise ImpossibleEvent(f"WorkerCleanedUp about a worker that is {worker.state.name}")
    # The tombstone keeps what refusing needs and what people ask about; the rest is let go.
    return worker._replace(
        state=WorkerState.CLEANED_UP,
        deadline_ms=event.at_ms + event.tombstone_retention_ms if event.tombstone_retention_ms else 0,
        lost=NO_BINDINGS,
        superseded=(),
        profile=NO_PROFILE,
        status=WorkerStatus.UNSPECIFIED,
        last_error="",
    )


@_evolve.register
def _(event: WorkerForgotten, worker: Worker) -> None:
    if worker.state is not WorkerState.CLEANED_UP:
        raise ImpossibleEvent(f"WorkerForgotten about a worker that is {worker.state.name}")


def _by_id(
    kept: Mapping[ActivityId, BoundActivity], bound: tuple[BoundActivity, ...]
) -> Mapping[ActivityId, BoundActivity]:
    if not bound:
        return freeze(kept)
    bindings = dict(kept)
    bindings.update((activity.id, activity) for activity in bound)
    return freeze(bindings)


def freeze(bindings: Mapping[ActivityId, BoundActivity]) -> Mapping[ActivityId, BoundActivity]:
    """Read-only, and one shared value for the many workers that hold nothing."""
    if not bindings:
        return NO_BINDINGS
    return bindings if isinstance(bindings, MappingProxyType) else MappingProxyType(bindings)
