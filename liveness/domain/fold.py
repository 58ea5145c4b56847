"""evolve: (state, event) → state. Total over events that `decider` can produce; reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from sys import intern
from types import MappingProxyType
from typing import Any

from liveness.domain.component import Component
from liveness.domain.decider import lost_with
from liveness.domain.events import (
    Activation,
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    ComponentChanged,
    ComponentOrdersDone,
    ComponentsOrdered,
    DisconnectGraceGranted,
    DrainBegun,
    EntryChanged,
    LeaseRenewed,
    LeaseTermsChanged,
    ReplicaLeft,
    ReplicaSeen,
    SessionReplaced,
    WorkerAdopted,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerForgotten,
    WorkerPaused,
    WorkerRegistered,
    WorkerResumed,
)
from liveness.domain.keys import ActivityId
from liveness.domain.registry import (
    FORMER_SESSIONS_MAX,
    Entry,
    FormerSession,
    Replica,
    base_session,
    live_replicas,
)
from liveness.domain.worker import (
    LOST_MAX,
    NO_BINDINGS,
    NO_HANDED,
    NO_PROFILE,
    NO_STANDING,
    SUPERSEDED_SESSIONS_MAX,
    BoundActivity,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
    intern_ms,
    shared_state,
)

ACTIVE = WorkerState.ACTIVE


class ImpossibleEvent(Exception):
    """The log holds an event that cannot follow the one before it: the log or this program is broken."""


def evolve(worker: Worker | None, event: WorkerEvent, sequence: int, wall_ms: int) -> Worker | None:
    """Return the next state. `sequence`: the event's position in the shard's log, which becomes the number of a new worker.
    `wall_ms`: the wall time that the log has for the event."""
    if worker is None:
        if not isinstance(event, WorkerRegistered):
            raise ImpossibleEvent(f"{type(event).__name__} about a worker that was never registered")
        return _activated(None, event, sequence, wall_ms)
    if isinstance(event, LeaseRenewed):
        return apply_renewal(worker, event, wall_ms - event.at_ms)
    if isinstance(event, WorkerRegistered):
        if worker.state is not WorkerState.CLEANED_UP:
            raise ImpossibleEvent(f"WorkerRegistered about a worker that is {worker.state.name}")
        return _activated(worker, event, sequence, wall_ms)
    if isinstance(event, Activation):
        return _reactivated(worker, event, wall_ms)
    if isinstance(event, WorkerDescribed):
        return _described(worker, event, wall_ms)
    return _evolve(event, worker)


def apply_renewal(worker: Worker, event: LeaseRenewed, wall_offset_ms: int) -> Worker:
    """`evolve` for LeaseRenewed, by far the most frequent event: a plain tuple in field order avoids the slow constructor.

    `wall_offset_ms`: wall time minus observed time, which all renewals of a log row share."""
    number, sequence, _, _, _, heartbeats, _, _, texts, shared = worker
    if shared.state is not ACTIVE:
        raise ImpossibleEvent(f"LeaseRenewed about a worker that is {shared.state.name}")
    new_sequence, at_ms, successes, errors = event
    if new_sequence > sequence + 1 > 1 and not shared.resync:
        shared = shared_state(*shared._replace(resync=True))
    return tuple.__new__(Worker, (
        number, new_sequence, at_ms, successes, errors, heartbeats + 1, wall_offset_ms, None, texts, shared,
    ))  # fmt: skip


def _described(worker: Worker, event: WorkerDescribed, wall_ms: int) -> Worker:
    described = worker._replace(profile=event.profile, status=event.status, last_error=event.last_error)
    error_ms = wall_ms if event.error_reported else worker.standing.last_error_wall_ms
    return _replace_standing(described, loop_lag_ms=event.loop_lag_ms, last_error_wall_ms=error_ms)


@singledispatch
def _evolve(event: object, worker: Worker) -> Worker | None:
    raise ImpossibleEvent(f"{type(event).__name__} is not about a worker")


def _reactivated(worker: Worker, event: Activation, wall_ms: int) -> Worker:
    expected = WorkerState.ACTIVE if isinstance(event, SessionReplaced) else WorkerState.INACTIVE
    if worker.state is not expected:
        raise ImpossibleEvent(f"{type(event).__name__} about a worker that is {worker.state.name}")
    return _activated(worker, event, worker.number, wall_ms)


def _activated(worker: Worker | None, event: Activation, number: int, wall_ms: int) -> Worker:
    superseded = worker.superseded if worker else ()
    if worker and worker.session_id and worker.session_id != event.session_id:
        superseded = (*superseded, worker.session_id)[-SUPERSEDED_SESSIONS_MAX:]
    return Worker(
        number=number,
        state=WorkerState.ACTIVE,
        session_id=event.session_id,
        sequence=event.sequence,
        epoch=event.epoch,
        granted_ms=intern_ms(event.granted_ms),
        renewed_ms=event.at_ms,
        deadline_ms=event.at_ms + event.granted_ms,
        bindings=_add_bindings({}, event.bindings),
        # The process of a replaced session is gone, so there is nothing left to cancel.
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
        standing=_standing_after_activation(worker, event, wall_ms),
        wall_offset_ms=intern_ms(wall_ms - event.at_ms),
        # The name is shared by all workers of a principal.
        principal=intern(event.principal),
        heartbeats=(worker.heartbeats if worker and not isinstance(event, WorkerRegistered) else 0) + 1,
    )


def _standing_after_activation(worker: Worker | None, event: Activation, wall_ms: int) -> Standing:
    """A pause applies to every process that uses the key; a drain and a disconnect grace belong to one session."""
    before = worker.standing if worker else NO_STANDING
    # Without a session id, a returning process cannot be told from a new one.
    if worker and worker.session_id and worker.session_id == event.session_id:
        standing = before._replace(loop_lag_ms=event.loop_lag_ms, handed=NO_HANDED)
    else:
        standing = Standing(
            paused=before.paused,
            loop_lag_ms=event.loop_lag_ms,
            component=before.component,
            orders=before.orders,
            entry=before.entry,
            former=_former_sessions(worker, event.session_id),
            last_error_wall_ms=before.last_error_wall_ms,
        )
    if event.error_reported:
        standing = standing._replace(last_error_wall_ms=wall_ms)
    if isinstance(event, SessionReplaced) and before.handed:
        held = worker.bindings if worker else {}
        declared = {activity.id: activity.attempt for activity in event.bindings}
        kept = {id: True for id in before.handed if declared.get(id) == held[id].attempt}
        standing = standing._replace(handed=_freeze_handed(kept))
    return NO_STANDING if standing == NO_STANDING else standing


def _former_sessions(worker: Worker | None, session_id: str) -> tuple[FormerSession, ...]:
    """Those that had the name before the session that now takes it."""
    if worker is None or worker.standing.entry is None:
        return ()
    present, before = base_session(session_id), base_session(worker.session_id)
    former = {each.session_id: each for each in worker.standing.former if each.session_id != present}
    if worker.sequence and before not in ("", present):
        former.pop(before, None)
        former[before] = FormerSession(before, worker.sequence)
    return tuple(former.values())[-FORMER_SESSIONS_MAX:]


def _freeze_handed(handed: Mapping[ActivityId, bool]) -> Mapping[ActivityId, bool]:
    return MappingProxyType(handed) if handed else NO_HANDED


def _replace_standing(worker: Worker, **changes: Any) -> Worker:
    standing = worker.standing._replace(**changes)
    return worker._replace(standing=NO_STANDING if standing == NO_STANDING else standing)


@_evolve.register
def _(event: WorkerAdopted, worker: Worker) -> Worker:
    return worker._replace(principal=intern(event.principal))


@_evolve.register
def _(event: LeaseTermsChanged, worker: Worker) -> Worker:
    return worker._replace(
        granted_ms=intern_ms(event.granted_ms), deadline_ms=worker.renewed_ms + event.granted_ms
    )


@_evolve.register
def _(event: BindingsChanged, worker: Worker) -> Worker:
    removed = set(event.unbound)
    kept = (
        {id: activity for id, activity in worker.bindings.items() if id not in removed}
        if removed
        else worker.bindings
    )
    lost = worker.lost
    if lost and removed:
        lost = freeze_bindings({id: activity for id, activity in lost.items() if id not in removed})
    bindings = _add_bindings(kept, event.bound)
    after = worker._replace(bindings=bindings, lost=lost, resync=event.resync)
    if not worker.standing.handed:
        return after
    known = {id: is_confirmed or id in event.confirmed for id, is_confirmed in worker.standing.handed.items()}
    return _replace_standing(
        after,
        handed=_freeze_handed({id: is_confirmed for id, is_confirmed in known.items() if id in bindings}),
    )


@_evolve.register
def _(event: ActivityHanded, worker: Worker) -> Worker:
    activity = event.activity
    handed = _freeze_handed({**worker.standing.handed, activity.id: False})
    return _replace_standing(
        worker._replace(bindings=_add_bindings(worker.bindings, (activity,))), handed=handed
    )


@_evolve.register
def _(event: BindingsEnded, worker: Worker) -> Worker:
    ended = {id: worker.bindings[id] for id in event.ids if id in worker.bindings}
    bindings = freeze_bindings({id: activity for id, activity in worker.bindings.items() if id not in ended})
    lost = _merge_lost(worker, ended) if event.taken else worker.lost
    return _replace_standing(
        worker._replace(bindings=bindings, lost=lost),
        handed=_freeze_handed({id: known for id, known in worker.standing.handed.items() if id not in ended}),
    )


@_evolve.register
def _(event: WorkerPaused, worker: Worker) -> Worker:
    return _replace_standing(worker, paused=True)


@_evolve.register
def _(event: WorkerResumed, worker: Worker) -> Worker:
    return _replace_standing(worker, paused=False, draining=False, drain_deadline_ms=0)


@_evolve.register
def _(event: DrainBegun, worker: Worker) -> Worker:
    return _replace_standing(worker, draining=True, drain_deadline_ms=event.deadline_ms)


@_evolve.register
def _(event: DisconnectGraceGranted, worker: Worker) -> Worker:
    return _replace_standing(worker, grace_ms=event.grace_ms)


@_evolve.register
def _(event: WorkerDeactivated, worker: Worker) -> Worker:
    if worker.state is not WorkerState.ACTIVE:
        raise ImpossibleEvent(f"WorkerDeactivated about a worker that is {worker.state.name}")
    if worker.standing is not NO_STANDING:
        # The grace stays: the same session may return while its stream is still open.
        worker = _replace_standing(worker, drain_deadline_ms=0, loop_lag_ms=0, handed=NO_HANDED)
    return worker._replace(
        state=WorkerState.INACTIVE,
        deadline_ms=event.at_ms + event.cleanup_delay_ms,
        bindings=NO_BINDINGS,
        lost=_merge_lost(worker, lost_with(worker, event)),
        resync=False,
        inactive_reason=event.reason,
        inactive_detail=event.detail,
    )


def _merge_lost(
    worker: Worker, taken: Mapping[ActivityId, BoundActivity]
) -> Mapping[ActivityId, BoundActivity]:
    if not worker.lost and len(taken) <= LOST_MAX:
        return freeze_bindings(taken)
    earlier = {id: activity for id, activity in worker.lost.items() if id not in taken}
    if len(earlier) + len(taken) > LOST_MAX:
        earlier = dict(list(earlier.items())[len(earlier) + len(taken) - LOST_MAX :])
    return freeze_bindings({**earlier, **taken})


@_evolve.register
def _(event: WorkerCleanedUp, worker: Worker) -> Worker:
    if worker.state is not WorkerState.INACTIVE:
        raise ImpossibleEvent(f"WorkerCleanedUp about a worker that is {worker.state.name}")
    # The tombstone keeps only what is needed to refuse the key and its replaced sessions, and to answer queries.
    return worker._replace(
        state=WorkerState.CLEANED_UP,
        deadline_ms=event.at_ms + event.tombstone_retention_ms if event.tombstone_retention_ms else 0,
        lost=NO_BINDINGS,
        superseded=worker.superseded if event.keeps_sessions else (),
        # A registered component may come back by its name alone.
        profile=NO_PROFILE if worker.standing.entry is None else worker.profile,
        status=WorkerStatus.UNSPECIFIED,
        last_error="",
        standing=_standing_of_tombstone(worker.standing),
    )


def _standing_of_tombstone(before: Standing) -> Standing:
    """A component keeps its restarts, a group its orders, and a registered component what is known of it."""
    standing = Standing(
        component=before.component, orders=before.orders, entry=before.entry, former=before.former
    )
    return NO_STANDING if standing == NO_STANDING else standing


@_evolve.register
def _(event: ComponentChanged, worker: Worker) -> Worker:
    before = worker.standing.component
    component = Component(
        number=event.number,
        status=event.status,
        since_ms=before.since_ms if before and before.status is event.status else event.wall_ms,
        session_id=event.session_id,
        reason=event.reason,
        by=event.by,
        process_id=event.process_id,
        process_start_ms=event.process_start_ms,
        paused=event.paused,
        wanted=event.wanted,
        details=event.details,
        restart_count=event.restart_count,
        restarts=event.restarts,
        created_ms=before.created_ms if before else event.wall_ms,
        last_exit=event.last_exit or (before.last_exit if before else None),
    )
    # A worker that a program of ours runs in is told to pause by the answers to its heartbeats.
    was_paused = before is not None and before.paused
    paused = worker.standing.paused if event.paused == was_paused else event.paused
    return _replace_standing(worker, component=component, paused=paused)


@_evolve.register
def _(event: ComponentsOrdered, worker: Worker) -> Worker:
    orders = worker.standing.orders
    return _replace_standing(
        worker,
        orders=orders._replace(last_number=event.order.number, waiting=(*orders.waiting, event.order)),
    )


@_evolve.register
def _(event: ComponentOrdersDone, worker: Worker) -> Worker:
    orders = worker.standing.orders
    waiting = tuple(order for order in orders.waiting if order.number > event.through)
    return _replace_standing(worker, orders=orders._replace(waiting=waiting))


@_evolve.register
def _(event: EntryChanged, worker: Worker) -> Worker:
    before = worker.standing.entry
    entry = Entry(
        uri=event.uri,
        status=event.status,
        capacity=event.capacity,
        runtime=event.runtime,
        interval_ms=event.interval_ms,
        lease_ms=event.lease_ms,
        first_seen_wall_ms=before.first_seen_wall_ms if before else event.wall_ms,
        replicas=before.replicas if before else (),
    )
    return _replace_standing(worker, entry=entry)


@_evolve.register
def _(event: ReplicaSeen, worker: Worker) -> Worker:
    entry = worker.standing.entry
    if entry is None:
        raise ImpossibleEvent("ReplicaSeen about a worker that is not registered as a component")
    seen = Replica(
        session_id=event.session_id,
        host_name=event.host_name,
        process_id=event.process_id,
        uri=event.uri,
        seen_ms=event.at_ms,
        first_seen_wall_ms=event.wall_ms,
        last_seen_wall_ms=event.wall_ms,
    )
    replicas = {
        replica.session_id: replica for replica in live_replicas(entry, worker.granted_ms, event.at_ms)
    }
    if (known := replicas.get(event.session_id)) is not None:
        seen = seen._replace(first_seen_wall_ms=known.first_seen_wall_ms)
    replicas[event.session_id] = seen
    return _replace_standing(worker, entry=entry._replace(replicas=tuple(replicas.values())))


@_evolve.register
def _(event: ReplicaLeft, worker: Worker) -> Worker:
    entry = worker.standing.entry
    if entry is None:
        raise ImpossibleEvent("ReplicaLeft about a worker that is not registered as a component")
    left = tuple(replica for replica in entry.replicas if replica.session_id != event.session_id)
    return _replace_standing(worker, entry=entry._replace(replicas=left))


@_evolve.register
def _(event: WorkerForgotten, worker: Worker) -> None:
    if worker.state is not WorkerState.CLEANED_UP:
        raise ImpossibleEvent(f"WorkerForgotten about a worker that is {worker.state.name}")


def _add_bindings(
    kept: Mapping[ActivityId, BoundActivity], bound: tuple[BoundActivity, ...]
) -> Mapping[ActivityId, BoundActivity]:
    if not bound:
        return freeze_bindings(kept)
    bindings = dict(kept)
    bindings.update((activity.id, activity) for activity in bound)
    return freeze_bindings(bindings)


def freeze_bindings(bindings: Mapping[ActivityId, BoundActivity]) -> Mapping[ActivityId, BoundActivity]:
    """Make bindings read-only. The many workers without bindings share one value."""
    if not bindings:
        return NO_BINDINGS
    return bindings if isinstance(bindings, MappingProxyType) else MappingProxyType(bindings)
