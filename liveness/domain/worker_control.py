"""decide, for operators' commands (pause, resume, drain), streams and hand-outs."""

from __future__ import annotations

from liveness.domain.decider import check_owner
from liveness.domain.errors import (
    BindingQuotaExceeded,
    SessionNotCurrent,
    SessionSuperseded,
    WorkerDraining,
    WorkerNotActive,
)
from liveness.domain.errors import WorkerCleanedUp as WorkerCleanedUpError
from liveness.domain.errors import WorkerPaused as WorkerPausedError
from liveness.domain.events import (
    ActivityHanded,
    BindingsEnded,
    DisconnectGraceGranted,
    DrainBegun,
    WorkerPaused,
    WorkerResumed,
)
from liveness.domain.keys import ActivityId, WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import BoundActivity, Worker, WorkerState


def pause(worker: Worker, reason: str, by: str = "") -> tuple[WorkerPaused, ...]:
    """`by`, here and below: the principal that orders it; empty if nobody is asked who calls."""
    if worker.state is WorkerState.CLEANED_UP or worker.standing.paused:
        return ()
    return (WorkerPaused(reason=reason, by=by),)


def resume(worker: Worker, by: str = "") -> tuple[WorkerResumed, ...]:
    """End a pause, or revoke a drain."""
    return (WorkerResumed(by=by),) if worker.standing.paused or worker.standing.draining else ()


def drain(
    key: WorkerKey, worker: Worker, reason: str, deadline_ms: int, by: str = ""
) -> tuple[DrainBegun, ...]:
    """Start a drain. Draining again replaces the deadline."""
    check_lease_is_live(key, worker)
    return (DrainBegun(reason=reason, deadline_ms=deadline_ms, by=by),)


def attach(
    key: WorkerKey, worker: Worker, session_id: str, grace_ms: int, principal: str = ""
) -> tuple[DisconnectGraceGranted, ...]:
    """`principal`: who attaches it; empty if callers are not asked."""
    check_owner(key, worker, principal)
    check_lease_is_live(key, worker, session_id)
    granted_ms = min(grace_ms, worker.granted_ms)
    return () if granted_ms == worker.standing.grace_ms else (DisconnectGraceGranted(grace_ms=granted_ms),)


def check_lease_is_live(key: WorkerKey, worker: Worker, session_id: str = "") -> None:
    """Refuse every session but the current one of a worker with a live lease."""
    if worker.state is WorkerState.CLEANED_UP:
        raise WorkerCleanedUpError(worker=key.instance_key)
    if session_id and session_id != worker.session_id:
        if session_id in worker.superseded:
            raise SessionSuperseded(session_id=session_id, worker=key.instance_key)
        raise SessionNotCurrent(session_id=session_id, worker=key.instance_key)
    if worker.state is not WorkerState.ACTIVE:
        raise WorkerNotActive(worker=key.instance_key, state=worker.state.name)


def check_accepts_work(key: WorkerKey, worker: Worker, policy: Policy) -> None:
    """Refuse new work for a worker that is draining, paused or at its quota."""
    if worker.standing.draining:
        raise WorkerDraining(worker=key.instance_key)
    if worker.standing.paused or policy.paused:
        raise WorkerPausedError(worker=key.instance_key)
    if len(worker.bindings) >= policy.max_bindings_per_worker:
        raise BindingQuotaExceeded(
            worker=key.instance_key, count=len(worker.bindings) + 1, limit=policy.max_bindings_per_worker
        )


def bind(activity: BoundActivity) -> tuple[ActivityHanded, ...]:
    return (ActivityHanded(activity=activity),)


def end_binding(worker: Worker, id: ActivityId, attempt: int, *, taken: bool) -> tuple[BindingsEnded, ...]:
    """End the binding of an attempt. `taken`: the worker did not end the attempt itself and is told to stop."""
    bound = worker.bindings.get(id)
    if bound is None or bound.attempt != attempt or worker.state is not WorkerState.ACTIVE:
        return ()
    return (BindingsEnded(ids=(id,), taken=taken),)
