"""decide, for registered components: who has a name, who is a replica of it, and what is known of it.

Every lease is decided by `decider.heartbeat`, as that of every worker; the events of this file follow in the same commit.

| the name is | this process has it | another process has it |
|---|---|---|
| unknown | register: registered | |
| ACTIVE | register, heartbeat: renewed | register: a replica, refused or numbered; heartbeat of a replica: seen |
| INACTIVE | register, heartbeat: resurrected | register, heartbeat of a replica: resurrected under the new session |
| CLEANED_UP | register, heartbeat: registered under `SESSION#EPOCH` | register, heartbeat of a replica: registered |

A heartbeat or a goodbye without a session id speaks for the process that has the name.
"""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain import decider
from liveness.domain.commands import Deactivate, Heartbeat
from liveness.domain.decider import check_owner, check_session_is_named
from liveness.domain.errors import (
    RegistryEntryNotFound,
    ReplicaQuotaExceeded,
    SessionNotCurrent,
    SessionSuperseded,
    WorkerKeyHeld,
    WorkerKeyOwned,
)
from liveness.domain.events import EntryChanged, ReplicaLeft, ReplicaSeen, WorkerEvent
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.registry import (
    DEFAULT_STATUS,
    OFFLINE,
    REPLICAS_MAX,
    STALE_INTERVALS,
    Entry,
    Replica,
    ReplicaPolicy,
    base_session,
    live_replicas,
)
from liveness.domain.worker import InactiveReason, Worker, WorkerState, WorkerStatus

ACTIVE, CLEANED_UP = WorkerState.ACTIVE, WorkerState.CLEANED_UP


class Registration(NamedTuple):
    """What a component says when it registers. The fields that `Entry` has, too, mean the same."""

    beat: Heartbeat
    """Session, profile and principal; its lease is that of the entry."""
    uri: str = ""
    status: str = DEFAULT_STATUS
    capacity: int | None = None
    runtime: str = ""
    interval_ms: int = 0
    lease_ms: int = 0
    on_replica: ReplicaPolicy = ReplicaPolicy.SHOW


def current_status(worker: Worker, entry: Entry) -> str:
    return entry.status if worker.state is ACTIVE else OFFLINE


def is_stale(worker: Worker, entry: Entry, now_ms: int) -> bool:
    """Whether its last heartbeat is older than two expected intervals, or its lease is over."""
    if worker.state is not ACTIVE:
        return True
    return 0 < entry.interval_ms * STALE_INTERVALS < now_ms - worker.renewed_ms


def has_name(worker: Worker, session_id: str) -> bool:
    """Whether a session is that of the process that has the name. No session id means that process. A process that goes on
    under `SESSION#EPOCH` may still call itself SESSION."""
    return session_id in ("", worker.session_id, base_session(worker.session_id))


def register(
    key: WorkerKey,
    worker: Worker | None,
    registration: Registration,
    at_ms: int,
    wall_ms: int,
    epoch_floor: int = 1,
) -> tuple[WorkerEvent, ...]:
    """The first event says what came of it: an activation, `ReplicaSeen`, or a renewal."""
    beat, told = registration.beat, _told(registration)
    if worker is None:
        events = decider.heartbeat(
            key, None, _lease_beat(beat, told, WorkerStatus.RUNNING), at_ms, epoch_floor
        )
        return (*events, _entry_changed(told, wall_ms))
    check_owner(key, worker, beat.principal)
    check_session_is_named(base_session(worker.session_id), beat.session_id, beat.principal)
    known = worker.standing.entry
    if has_name(worker, beat.session_id):
        events = decider.heartbeat(
            key, worker, _lease_beat(_own_beat(worker, beat), told, worker.status), at_ms
        )
    elif worker.state is ACTIVE:
        if known is None or registration.on_replica is not ReplicaPolicy.SHOW:
            raise WorkerKeyHeld(
                worker=key.instance_key, host=worker.shared.profile.host_name or "an unnamed host"
            )
        return (_replica_seen(key, worker, known, registration, at_ms, wall_ms),)
    else:
        beat = _take_name(worker, beat)
        events = decider.heartbeat(key, worker, _lease_beat(beat, told, WorkerStatus.RUNNING), at_ms)
    return (
        *events,
        *_left(known, registration.beat.session_id),
        *_entry_events(known, told, wall_ms, is_repeated=not events),
    )


def _told(registration: Registration) -> Entry:
    return Entry(
        uri=registration.uri,
        status=registration.status,
        capacity=registration.capacity,
        runtime=registration.runtime,
        interval_ms=registration.interval_ms,
        lease_ms=registration.lease_ms,
    )


def heartbeat(
    key: WorkerKey, worker: Worker | None, beat: Heartbeat, status: str, at_ms: int, wall_ms: int
) -> tuple[WorkerEvent, ...]:
    """`status`: empty if it is as before."""
    worker, entry = known_entry(key, worker)
    check_owner(key, worker, beat.principal)
    check_session_is_named(base_session(worker.session_id), beat.session_id, beat.principal)
    told = entry._replace(status=status or entry.status)
    session_id = beat.session_id
    if has_name(worker, session_id):
        beat = _own_beat(worker, beat)
        events = decider.heartbeat(key, worker, _lease_beat(beat, entry, worker.status), at_ms)
        return (*events, *_entry_events(entry, told, wall_ms, is_repeated=not events))
    replica = _replica_of(entry, session_id)
    if replica is None:
        raise _not_current(key, worker, session_id)
    if worker.state is ACTIVE:
        return (_seen_again(replica, at_ms, wall_ms),)
    profile = worker.profile._replace(host_name=replica.host_name, process_id=replica.process_id)
    beat = _take_name(worker, beat)._replace(profile=profile)
    events = decider.heartbeat(key, worker, _lease_beat(beat, entry, WorkerStatus.RUNNING), at_ms)
    told = told._replace(uri=replica.uri or told.uri)
    return (*events, ReplicaLeft(session_id=session_id), *_entry_events(entry, told, wall_ms))


def deregister(
    key: WorkerKey,
    worker: Worker | None,
    session_id: str,
    reason: str,
    policy: Policy,
    at_ms: int,
    principal: str = "",
) -> tuple[WorkerEvent, ...]:
    """The goodbye of the process that has the name, or of a replica, which ends no lease."""
    worker, entry = known_entry(key, worker)
    check_owner(key, worker, principal)
    check_session_is_named(base_session(worker.session_id), session_id, principal)
    if has_name(worker, session_id):
        if worker.state is CLEANED_UP:
            return ()
        command = Deactivate(InactiveReason.SHUTDOWN, reason, policy, worker.session_id, principal)
        return decider.deactivate(key, worker, command, at_ms)
    if _replica_of(entry, session_id) is None:
        raise _not_current(key, worker, session_id)
    return (ReplicaLeft(session_id=session_id),)


def known_entry(key: WorkerKey, worker: Worker | None) -> tuple[Worker, Entry]:
    if worker is None or worker.standing.entry is None:
        raise RegistryEntryNotFound(entry=key.instance_key, namespace=key.namespace)
    return worker, worker.standing.entry


# -- leases


def _lease_beat(beat: Heartbeat, entry: Entry, status: WorkerStatus) -> Heartbeat:
    return beat._replace(requested_ms=entry.requested_ms, status=status, new_incarnation=True)


def _own_beat(worker: Worker, beat: Heartbeat) -> Heartbeat:
    """The heartbeat of the process that has the name, under the session that it has."""
    beat = beat._replace(loop_lag_ms=worker.standing.loop_lag_ms)
    if worker.state is not CLEANED_UP:
        return beat._replace(session_id=worker.session_id)
    return _uncounted(worker, beat)._replace(
        session_id=_renamed(worker, worker.session_id),
        profile=beat.profile if any(beat.profile) else worker.profile,
    )


def _take_name(worker: Worker, beat: Heartbeat) -> Heartbeat:
    """The heartbeat of another process that takes the name: under its own session, unless it had the name before. It registers
    anew, so it is no zombie; but a session that was replaced never comes back."""
    session_id = beat.session_id
    return _uncounted(worker, beat)._replace(
        session_id=_renamed(worker, session_id) if session_id in worker.superseded else session_id
    )


def _uncounted(worker: Worker, beat: Heartbeat) -> Heartbeat:
    """The heartbeat that begins a lease, without what it counted already. A process that had the name before goes on with its numbers."""
    last = _last_counted(worker, beat.session_id)
    if beat.sequence > last:
        return beat
    return (
        beat._replace(sequence=last, successes=0, errors=0, last_error="")
        if beat.sequence
        else beat._replace(sequence=last)
    )


def _last_counted(worker: Worker, session_id: str) -> int:
    """The last number of a session that was counted; 0 if it counted nothing. No session id: that of the process that has the name."""
    if has_name(worker, session_id):
        return worker.sequence if base_session(worker.session_id) else 0
    session_id = base_session(session_id)
    return next((each.sequence for each in worker.standing.former if each.session_id == session_id), 0)


def _renamed(worker: Worker, session_id: str) -> str:
    """A session that the key has never had."""
    return f"{base_session(session_id)}#{worker.epoch + 1}"


def _not_current(key: WorkerKey, worker: Worker, session_id: str) -> SessionSuperseded | SessionNotCurrent:
    kind = SessionSuperseded if session_id in worker.superseded else SessionNotCurrent
    return kind(session_id=session_id, worker=key.instance_key)


# -- replicas


def _replica_of(entry: Entry | None, session_id: str) -> Replica | None:
    replicas = entry.replicas if entry is not None else ()
    return next((replica for replica in replicas if replica.session_id == session_id), None)


def _replica_seen(
    key: WorkerKey, worker: Worker, entry: Entry, registration: Registration, at_ms: int, wall_ms: int
) -> ReplicaSeen:
    beat = registration.beat
    if beat.principal and not worker.principal:
        # Whoever registered it before callers were asked can still be alive, and proves it by its session id.
        raise WorkerKeyOwned(worker=key.instance_key)
    others = [
        replica
        for replica in live_replicas(entry, worker.granted_ms, at_ms)
        if replica.session_id != beat.session_id
    ]
    if len(others) >= REPLICAS_MAX:
        raise ReplicaQuotaExceeded(entry=key.instance_key, limit=REPLICAS_MAX)
    return ReplicaSeen(
        session_id=beat.session_id,
        host_name=beat.profile.host_name,
        process_id=beat.profile.process_id,
        uri=registration.uri,
        at_ms=at_ms,
        wall_ms=wall_ms,
    )


def _seen_again(replica: Replica, at_ms: int, wall_ms: int) -> ReplicaSeen:
    return ReplicaSeen(
        session_id=replica.session_id,
        host_name=replica.host_name,
        process_id=replica.process_id,
        uri=replica.uri,
        at_ms=at_ms,
        wall_ms=wall_ms,
    )


def _left(entry: Entry | None, session_id: str) -> tuple[ReplicaLeft, ...]:
    """A replica that takes the name is none any more."""
    return () if _replica_of(entry, session_id) is None else (ReplicaLeft(session_id=session_id),)


# -- what is known of a component


def _entry_events(
    known: Entry | None, told: Entry, wall_ms: int, *, is_repeated: bool = False
) -> tuple[EntryChanged, ...]:
    """`is_repeated`: the call was sent again, because its answer was lost."""
    if known is not None and (
        is_repeated
        or told._replace(first_seen_wall_ms=known.first_seen_wall_ms, replicas=known.replicas) == known
    ):
        return ()
    return (_entry_changed(told, wall_ms),)


def _entry_changed(told: Entry, wall_ms: int) -> EntryChanged:
    return EntryChanged(
        uri=told.uri,
        status=told.status,
        capacity=told.capacity,
        runtime=told.runtime,
        interval_ms=told.interval_ms,
        lease_ms=told.lease_ms,
        wall_ms=wall_ms,
    )
