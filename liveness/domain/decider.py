"""decide: (state, command, time) → events, or a refusal that changes nothing.

One function per command; `heartbeat` is the table of the worker's state machine, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from liveness.domain.commands import Deactivate, Heartbeat
from liveness.domain.death_certificate import NO_EVIDENCE, DeathCertificate, DeathEvidence, issue_certificate
from liveness.domain.errors import (
    BindingQuotaExceeded,
    InvalidField,
    SessionNotCurrent,
    SessionSuperseded,
    StaleHeartbeat,
    WorkerActive,
    WorkerKeyHeld,
    WorkerKeyOwned,
    WorkerNotActive,
    WorkerQuotaExceeded,
)
from liveness.domain.errors import WorkerCleanedUp as WorkerCleanedUpError
from liveness.domain.events import (
    Activation,
    BindingsChanged,
    LeaseRenewed,
    LeaseTermsChanged,
    SessionReplaced,
    WorkerAdopted,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.keys import ActivityId, WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    BoundActivity,
    InactiveReason,
    Worker,
    WorkerState,
)

ActivationT = TypeVar("ActivationT", bound=Activation)

ACTIVE = WorkerState.ACTIVE
COUNTER_MAX = 2**63 - 1


def check_worker_quota(namespace: str, policy: Policy, occupancy: int, inactive: int) -> None:
    """Refuse one more worker in a full namespace. `inactive`: how many of the workers that it has are INACTIVE."""
    if occupancy >= policy.max_workers:
        raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers, inactive=inactive)


def heartbeat(
    key: WorkerKey, worker: Worker | None, beat: Heartbeat, at_ms: int, epoch_floor: int = 1
) -> tuple[WorkerEvent, ...]:
    """`epoch_floor`: the lowest epoch of a key that is not known. It may have been known before and be forgotten since."""
    if worker is None:
        return (_activate(WorkerRegistered, key, None, beat, at_ms, epoch_floor),)
    session_id = beat.session_id
    if beat.principal:
        check_owner(key, worker, beat.principal)
        if not worker.principal and worker.state is ACTIVE and session_id != worker.session_id:
            # Whoever registered it before callers were asked can still be alive, and proves it by its session id.
            raise WorkerKeyOwned(worker=key.instance_key)
    if worker.state is WorkerState.CLEANED_UP:
        return (_reincarnate(key, worker, beat, at_ms),)
    if session_id and session_id != worker.session_id:
        _check_not_superseded(key, worker, beat)
        if worker.state is ACTIVE and beat.only_if_free:
            raise WorkerKeyHeld(
                worker=key.instance_key, host=worker.shared.profile.host_name or "an unnamed host"
            )
        if worker.state is ACTIVE:
            return (_activate(SessionReplaced, key, worker, beat, at_ms),)
        return (_activate(WorkerResurrected, key, worker, beat, at_ms),)
    sequence = beat.sequence
    # A sequence number means something only inside a named session: an unnamed one may have restarted at 1.
    if sequence and session_id and sequence <= worker.sequence:
        if sequence == worker.sequence:
            return ()
        raise StaleHeartbeat(sequence=sequence, last_sequence=worker.sequence)
    if worker.state is not ACTIVE:
        return (_activate(WorkerResurrected, key, worker, beat, at_ms),)
    return _renew(key, worker, beat, at_ms)


def check_owner(key: WorkerKey, worker: Worker, principal: str) -> None:
    """Refuse a principal that did not register the key. `principal`: empty if callers are not asked who they are."""
    if principal and worker.principal and worker.principal != principal:
        raise WorkerKeyOwned(worker=key.instance_key)


def check_session_is_named(worker_session_id: str, session_id: str, principal: str) -> None:
    """Where callers are asked who they are, refuse a call for a worker that does not name the worker's session: within
    one principal, the session id is what tells one process from another."""
    if principal and worker_session_id and not session_id:
        raise InvalidField(field="session_id", rule="must be set")


def _reincarnate(key: WorkerKey, tombstone: Worker, beat: Heartbeat, at_ms: int) -> WorkerRegistered:
    """Register a cleaned-up key anew, for a session that it has never had. Without a session id, a new process cannot be
    told from the one that was cleaned up."""
    if not beat.new_incarnation or beat.session_id in ("", tombstone.session_id):
        raise WorkerCleanedUpError(worker=key.instance_key)
    _check_not_superseded(key, tombstone, beat)
    return _activate(WorkerRegistered, key, None, beat, at_ms, tombstone.epoch + 1)


def _check_not_superseded(key: WorkerKey, worker: Worker, beat: Heartbeat) -> None:
    """Refuse a session that was replaced. The worker may not remember it, because it was replaced long ago or the worker
    that it belonged to was forgotten; but epochs only rise, so a lower one tells."""
    if beat.session_id in worker.superseded or 0 < beat.lease_epoch < worker.epoch:
        raise SessionSuperseded(session_id=beat.session_id, worker=key.instance_key)


def renewal_event(worker: Worker, sequence: int, successes: int, errors: int, at_ms: int) -> LeaseRenewed:
    """The event that every heartbeat of the current session of an ACTIVE worker causes."""
    return tuple.__new__(
        LeaseRenewed,
        (
            sequence or worker.sequence,
            at_ms,
            min(worker.successes + successes, COUNTER_MAX) if successes else worker.successes,
            min(worker.errors + errors, COUNTER_MAX) if errors else worker.errors,
        ),
    )


def _renew(key: WorkerKey, worker: Worker, beat: Heartbeat, at_ms: int) -> tuple[WorkerEvent, ...]:
    renewed = renewal_event(worker, _sequence_in_session(worker, beat), beat.successes, beat.errors, at_ms)
    events: list[WorkerEvent] = []
    if beat.principal and not worker.principal:
        events.append(WorkerAdopted(principal=beat.principal))
    granted_ms = beat.policy.granted_ms(beat.requested_ms)
    if granted_ms != worker.granted_ms:
        events.append(LeaseTermsChanged(granted_ms=granted_ms))
    profile = worker.profile if beat.profile == NO_PROFILE else beat.profile
    last_error = beat.last_error or worker.last_error
    # A client that names its last error in every heartbeat reports it once; another failure counts as another error.
    error_reported = bool(beat.last_error) and (beat.last_error != worker.last_error or beat.errors > 0)
    described = (profile, beat.status, last_error, beat.loop_lag_ms)
    if error_reported or described != (
        worker.profile, worker.status, worker.last_error, worker.standing.loop_lag_ms,
    ):  # fmt: skip
        events.append(
            WorkerDescribed(
                profile=profile,
                status=beat.status,
                last_error=last_error,
                loop_lag_ms=beat.loop_lag_ms,
                error_reported=error_reported,
            )
        )
    if beat.bound or beat.unbound or beat.full_bindings:
        change = _binding_changes(key, worker, beat)
        if change is not None and beat.full_bindings:
            # The change comes last: this heartbeat carries the whole set, so a gap in its sequence numbers does not matter.
            return (*events, renewed, change)
        if change is not None:
            events.append(change)
    return (*events, renewed)


def _sequence_in_session(worker: Worker, beat: Heartbeat) -> int:
    """The heartbeat's sequence number; 0 if it names no session but the worker has one, whose numbers it cannot continue."""
    return beat.sequence if beat.session_id or not worker.session_id else 0


def _binding_changes(key: WorkerKey, worker: Worker, beat: Heartbeat) -> BindingsChanged | None:
    """The changes to the worker's bindings that a heartbeat causes, or None."""
    held, lost = worker.bindings, worker.lost
    resync = worker.resync
    task_queue = beat.profile.task_queue or worker.shared.profile.task_queue
    handed = worker.standing.handed
    all_declared = _declared_bindings(beat.bound, task_queue)
    declared = {
        id: activity
        for id, activity in all_declared.items()
        # The service decided which attempt it handed to the worker; the worker cannot change that.
        if not handed or id not in handed or held[id].attempt == activity.attempt
    }
    confirmed = tuple([id for id in declared if handed.get(id) is False]) if handed else ()
    removed: dict[ActivityId, None] = {}
    cancelled: dict[ActivityId, None] = {}
    for activity in beat.unbound:
        id = activity.id
        known, claimed = held.get(id), declared.get(id)
        # A worker may report the end of an earlier attempt before it learns that it has to stop a later one.
        if lost and id in lost and lost[id].attempt == activity.attempt:
            cancelled[id] = None
        if claimed is not None and claimed.attempt == activity.attempt:
            del declared[id]  # started and finished between two heartbeats
            if known is not None:
                removed[id] = None
        elif known is not None and known.attempt == activity.attempt:
            removed[id] = None
        elif not (known or claimed or id in lost) and beat.sequence and beat.session_id:
            resync = True  # the worker held an activity that it never reported here
    if beat.full_bindings:
        # The worker may have written this heartbeat before it received the newest hand-outs.
        removed.update((id, None) for id in held if id not in declared and handed.get(id) is not False)
        cancelled.update((id, None) for id in lost if id not in all_declared)
    bound = {id: activity for id, activity in declared.items() if held.get(id) != activity}
    unbound = {id: None for id in removed if id not in declared}
    for id in cancelled:
        unbound[id] = None
        # The lost attempt is over; a later attempt that the worker holds is not.
        kept = declared.get(id) or (held.get(id) if id not in removed else None)
        if kept is not None:
            bound[id] = kept
    added = sum([id not in held for id in bound])
    if len(held) + added > beat.policy.max_bindings_per_worker:  # otherwise the count need not be exact
        count = len(held) + added - sum(id in held and id not in bound for id in unbound)
        _check_binding_quota(key, beat.policy, count, len(held))
    was_resync = worker.resync
    if beat.full_bindings:
        resync = False
        was_resync = was_resync or _sequence_in_session(worker, beat) > worker.sequence + 1 > 1
    if not bound and not unbound and not confirmed and resync == was_resync:
        return None
    return BindingsChanged(
        bound=tuple(bound.values()), unbound=tuple(unbound), resync=resync, confirmed=confirmed
    )


def _activate(
    kind: type[ActivationT],
    key: WorkerKey,
    worker: Worker | None,
    beat: Heartbeat,
    at_ms: int,
    epoch_floor: int = 1,
) -> ActivationT:
    """Start a new lease whose bindings are exactly those in the heartbeat. `worker`: None if a new life of the key begins."""
    known_profile = worker.profile if worker else NO_PROFILE
    profile = known_profile if beat.profile == NO_PROFILE else beat.profile
    bindings = _declared_bindings(beat.bound, profile.task_queue)
    for activity in beat.unbound:
        if activity.id in bindings and bindings[activity.id].attempt == activity.attempt:
            del bindings[activity.id]
    _check_binding_quota(key, beat.policy, len(bindings), 0)
    same_session = worker is not None and beat.session_id in ("", worker.session_id)
    last_sequence = worker.sequence if worker and same_session else 0
    sequence = _sequence_in_session(worker, beat) if worker else beat.sequence
    return kind(
        session_id=beat.session_id or (worker.session_id if worker else ""),
        sequence=sequence or last_sequence,
        epoch=max(worker.epoch + 1 if worker else epoch_floor, beat.policy.token_floor),
        at_ms=at_ms,
        granted_ms=beat.policy.granted_ms(beat.requested_ms),
        bindings=tuple(bindings.values()),
        profile=profile,
        status=beat.status,
        last_error=beat.last_error or (worker.last_error if worker else ""),
        successes=min((worker.successes if worker else 0) + beat.successes, COUNTER_MAX),
        errors=min((worker.errors if worker else 0) + beat.errors, COUNTER_MAX),
        resync=not beat.full_bindings and sequence > last_sequence + 1,
        loop_lag_ms=beat.loop_lag_ms,
        # With authentication switched off again, a worker keeps its owner.
        principal=beat.principal or (worker.principal if worker else ""),
        error_reported=bool(beat.last_error),
    )


def _declared_bindings(bound: Iterable[BoundActivity], task_queue: str) -> dict[ActivityId, BoundActivity]:
    """The bindings that a heartbeat reports. An activity without a task queue gets the worker's."""
    declared = {}
    for activity in bound:
        if not activity.task_queue:
            if not task_queue:
                raise InvalidField(
                    field="heartbeat.bound_activities.task_queue",
                    rule="must be set when the worker has no task_queue",
                )
            workflow_id, run_id, activity_id, attempt, _, token = activity
            activity = BoundActivity(workflow_id, run_id, activity_id, attempt, task_queue, token)
        declared[activity.id] = activity
    return declared


def _check_binding_quota(key: WorkerKey, policy: Policy, count: int, held: int) -> None:
    # After the quota was lowered, a worker above it may still reduce its bindings.
    if count > policy.max_bindings_per_worker and count > held:
        raise BindingQuotaExceeded(worker=key.instance_key, count=count, limit=policy.max_bindings_per_worker)


def deactivate(
    key: WorkerKey, worker: Worker, command: Deactivate, at_ms: int
) -> tuple[WorkerDeactivated, ...]:
    """End the lease on a shutdown or by force. A shutdown of a worker that is not ACTIVE changes nothing."""
    check_owner(key, worker, command.principal)
    check_session_is_named(worker.session_id, command.session_id, command.principal)
    if worker.state is WorkerState.CLEANED_UP:
        raise WorkerCleanedUpError(worker=key.instance_key)
    if command.session_id and command.session_id != worker.session_id:
        if command.session_id in worker.superseded:
            raise SessionSuperseded(session_id=command.session_id, worker=key.instance_key)
        raise SessionNotCurrent(session_id=command.session_id, worker=key.instance_key)
    if worker.state is not ACTIVE:
        if command.reason is InactiveReason.FORCED:
            raise WorkerNotActive(worker=key.instance_key, state=worker.state.name)
        return ()
    return (_deactivated(command.reason, command.detail, command.policy, at_ms, by=command.by),)


def expire_lease(
    worker: Worker, policy: Policy, at_ms: int, evidence: DeathEvidence = NO_EVIDENCE
) -> tuple[WorkerDeactivated, ...]:
    """End the lease if its deadline has passed. No other function ends a lease for silence."""
    if worker.state is not ACTIVE or at_ms < worker.deadline_ms:
        return ()
    detail = f"no heartbeat for {at_ms - worker.renewed_ms} ms of a {worker.granted_ms} ms lease"
    certificate = issue_certificate(worker, at_ms, evidence)
    return (_deactivated(InactiveReason.LEASE_EXPIRED, detail, policy, at_ms, certificate),)


def disconnect(
    worker: Worker, policy: Policy, at_ms: int, broken_ms: int, evidence: DeathEvidence = NO_EVIDENCE
) -> tuple[WorkerDeactivated, ...]:
    """End the lease if the worker's stream broke at `broken_ms` and its disconnect grace has passed."""
    grace_ms = worker.standing.grace_ms
    if worker.state is not ACTIVE or not grace_ms or at_ms < broken_ms + grace_ms:
        return ()
    detail = (
        f"its stream broke and nothing was heard of it for {at_ms - broken_ms} ms of a {grace_ms} ms grace"
    )
    certificate = issue_certificate(worker, at_ms, evidence)
    return (_deactivated(InactiveReason.DISCONNECTED, detail, policy, at_ms, certificate),)


def end_drain(worker: Worker, policy: Policy, at_ms: int) -> tuple[WorkerDeactivated, ...]:
    """End the lease if the deadline of the drain has passed."""
    deadline_ms = worker.standing.drain_deadline_ms
    if worker.state is not ACTIVE or not deadline_ms or at_ms < deadline_ms:
        return ()
    detail = f"drained; {len(worker.bindings)} activities were left at the limit"
    return (_deactivated(InactiveReason.DRAINED, detail, policy, at_ms),)


def _deactivated(
    reason: InactiveReason,
    detail: str,
    policy: Policy,
    at_ms: int,
    certificate: DeathCertificate | None = None,
    by: str = "",
) -> WorkerDeactivated:
    return WorkerDeactivated(
        reason=reason,
        detail=detail,
        at_ms=at_ms,
        cleanup_delay_ms=policy.cleanup_delay_ms,
        certificate=certificate,
        by=by,
    )


def clean_up(worker: Worker, policy: Policy, at_ms: int) -> tuple[WorkerCleanedUp, ...]:
    if worker.state is not WorkerState.INACTIVE or at_ms < worker.deadline_ms:
        return ()
    return (_cleaned_up(policy, at_ms),)


def _cleaned_up(policy: Policy, at_ms: int) -> WorkerCleanedUp:
    return WorkerCleanedUp(
        at_ms=at_ms, tombstone_retention_ms=policy.tombstone_retention_ms, keeps_sessions=True
    )


def forget(worker: Worker, at_ms: int) -> tuple[WorkerForgotten, ...]:
    """Remove a tombstone whose retention is over."""
    if worker.state is not WorkerState.CLEANED_UP or not worker.deadline_ms or at_ms < worker.deadline_ms:
        return ()
    return (_forgotten(worker),)


def forget_now(
    key: WorkerKey, worker: Worker, policy: Policy, reason: str, at_ms: int, by: str = ""
) -> tuple[WorkerEvent, ...]:
    """Free the key on an operator's order. An INACTIVE worker is cleaned up first; an ACTIVE one must not lose its lease
    this way."""
    if worker.state is ACTIVE:
        raise WorkerActive(worker=key.instance_key)
    if worker.state is WorkerState.INACTIVE:
        return _cleaned_up(policy, at_ms), _forgotten(worker, reason, by)
    return (_forgotten(worker, reason, by),)


def _forgotten(worker: Worker, reason: str = "", by: str = "") -> WorkerForgotten:
    return WorkerForgotten(epoch_floor=worker.epoch + 1, reason=reason, by=by)


def lost_with(worker: Worker, event: WorkerEvent) -> Mapping[ActivityId, BoundActivity]:
    """The bindings that an event takes from a worker; each becomes an `ActivityRescheduleTask`."""
    if isinstance(event, WorkerDeactivated):
        return worker.bindings
    if isinstance(event, SessionReplaced):
        kept = {activity.id: activity.attempt for activity in event.bindings}
        handed = worker.standing.handed
        return {
            id: activity
            for id, activity in worker.bindings.items()
            if id not in kept or (id in handed and kept[id] != activity.attempt)
        }
    if isinstance(event, BindingsChanged) and worker.standing.handed:
        # An activity that the service handed out and the worker unbinds without an outcome must run on another worker.
        # The engine that owns a self-bound activity takes care of it.
        bound = {activity.id for activity in event.bound}
        return {
            id: worker.bindings[id]
            for id in event.unbound
            if id in worker.standing.handed and id in worker.bindings and id not in bound
        }
    return NO_BINDINGS
