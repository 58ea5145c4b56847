"""Strategies for domain values: everything that the wire format admits, unusual values included."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, TypeVar

from hypothesis import strategies as st

from liveness.domain import events
from liveness.domain.activity import (
    REMEMBERED_RELEASES_MAX,
    Activity,
    ActivityState,
    EndedAttempt,
    ReleasedAttempt,
)
from liveness.domain.component import (
    NO_ORDERS,
    Component,
    ComponentOrder,
    ComponentStatus,
    OrderAction,
    OrderBook,
    ProcessExit,
)
from liveness.domain.death_certificate import (
    HEARTBEATS_MAX,
    STALLS_MAX,
    ConcurrentDeaths,
    DeathCertificate,
    Stall,
)
from liveness.domain.decider import ActivationT
from liveness.domain.events import LeaseRenewed, Priority, Retry, TimeLimit, TimeLimits
from liveness.domain.fold import freeze_bindings
from liveness.domain.keys import ActivityId
from liveness.domain.progress import UnitProgress
from liveness.domain.registry import Entry, FormerSession, Replica
from liveness.domain.schedule import Firing, Schedule
from liveness.domain.worker import (
    NO_HANDED,
    NO_STANDING,
    BoundActivity,
    InactiveReason,
    Profile,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)

INT64_MAX = 2**63 - 1

ActivityEventT = TypeVar("ActivityEventT", bound=events.ActivityFact)

# Strings on the wire are valid UTF-8: no halves of surrogate pairs.
text = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, INT64_MAX)
counts = st.integers(1, INT64_MAX)
# The sum of two must fit into a column of the store.
times = st.integers(0, INT64_MAX // 2)
durations = st.integers(0, INT64_MAX // 2)
offsets = st.none() | times
"""Wall time minus observed time, where it is known."""

activity_ids = st.builds(ActivityId, text, text, text)
bound_activities = st.builds(
    BoundActivity, text, text, text, st.integers(1, 2**31 - 1), text, st.binary(max_size=20)
)
profiles = st.builds(
    Profile,
    worker_identity=text,
    task_queue=text,
    build_id=text,
    sdk_name=text,
    sdk_version=text,
    host_name=text,
    process_id=text,
    start_time_ns=st.none() | st.integers(-(2**63), INT64_MAX),
    labels=st.lists(st.tuples(text, text), max_size=3).map(tuple),
    capabilities=st.lists(text, max_size=3).map(tuple),
    current_job=text,
)
statuses = st.sampled_from(WorkerStatus)
reasons = st.sampled_from(InactiveReason)
held = st.lists(bound_activities, max_size=4).map(tuple)
some_ids = st.lists(activity_ids, max_size=4).map(tuple)


def _activations(kind: type[ActivationT]) -> st.SearchStrategy[ActivationT]:
    return st.builds(
        kind,
        session_id=text,
        sequence=numbers,
        epoch=counts,
        at_ms=times,
        granted_ms=durations,
        bindings=held,
        profile=profiles,
        status=statuses,
        last_error=text,
        successes=numbers,
        errors=numbers,
        resync=st.booleans(),
        loop_lag_ms=durations,
        principal=text,
        error_reported=st.booleans(),
    )


blobs = st.binary(max_size=20)
priorities = st.builds(Priority, st.integers(1, 5), text, st.floats(0.001, 1_000))
time_limits = st.builds(TimeLimits, numbers, numbers, numbers, numbers)
retries = st.builds(
    Retry,
    initial_ms=durations,
    coefficient=st.floats(1, 1_000),
    max_ms=durations,
    max_attempts=numbers,
    max_deaths=st.none() | numbers,
)


def _about_activity(kind: type[ActivityEventT], **fields: Any) -> st.SearchStrategy[ActivityEventT]:
    return st.builds(kind, run_id=text, activity_id=text, **fields)


def _of_attempt(kind: type[ActivityEventT], **fields: Any) -> st.SearchStrategy[ActivityEventT]:
    return _about_activity(kind, worker=text, epoch=counts, attempt=counts, at_ms=times, **fields)


settings = st.dictionaries(text, st.floats(0, allow_nan=False, allow_infinity=False), max_size=4)

exits = st.builds(
    ProcessExit,
    code=st.none() | st.integers(-(2**31), 2**31 - 1),
    signal=text,
    wall_ms=times,
    last_lines=st.lists(text, max_size=3).map(tuple),
)
component_fields: dict[str, st.SearchStrategy[Any]] = {
    "number": counts,
    "status": st.sampled_from(ComponentStatus),
    "session_id": text,
    "reason": text,
    "by": text,
    "process_id": numbers,
    "process_start_ms": times,
    "paused": st.booleans(),
    "wanted": st.booleans(),
    "details": text,
    "restart_count": numbers,
    "restarts": st.lists(times, max_size=3).map(tuple),
    "last_exit": st.none() | exits,
}
components = st.builds(Component, since_ms=times, created_ms=times, **component_fields)
orders = st.builds(
    ComponentOrder,
    number=counts,
    action=st.sampled_from(OrderAction),
    components=st.lists(text, max_size=3).map(tuple),
    processes=numbers,
    reason=text,
    by=text,
    wall_ms=times,
)
order_books = st.just(NO_ORDERS) | st.builds(
    OrderBook, last_number=numbers, waiting=st.lists(orders, max_size=3).map(tuple)
)

entry_fields: dict[str, st.SearchStrategy[Any]] = {
    "uri": text,
    "status": text,
    "capacity": st.none() | numbers,
    "runtime": text,
    "interval_ms": durations,
    "lease_ms": durations,
}
replicas = st.builds(
    Replica,
    session_id=text,
    host_name=text,
    process_id=text,
    uri=text,
    seen_ms=times,
    first_seen_wall_ms=times,
    last_seen_wall_ms=times,
)
entries = st.builds(
    Entry,
    first_seen_wall_ms=times,
    replicas=st.lists(replicas, max_size=2).map(tuple),
    **entry_fields,
)

companies = st.builds(ConcurrentDeaths, numbers, numbers, numbers)
certificates = st.builds(
    DeathCertificate,
    epoch=counts,
    session_id=text,
    silence_ms=st.none() | durations,
    granted_ms=durations,
    activities=st.none() | numbers,
    heartbeats=st.lists(times, max_size=HEARTBEATS_MAX).map(tuple),
    stalls=st.lists(st.builds(Stall, times, st.none() | durations), max_size=STALLS_MAX).map(tuple),
    company=companies,
    host_name=text,
    build_id=text,
    task_queue=text,
    exit=st.none() | exits,
)

# One strategy for each kind of event that is stored as its own row.
schedule_specs = st.builds(
    events.ScheduleSpec,
    activity=st.builds(events.FiredActivity, text, text, blobs, text, retries, time_limits, priorities),
    cron=text,
    time_zone=text,
    every_ms=numbers,
    offset_ms=numbers,
    missed=st.sampled_from(events.MissedPolicy),
    overlap=st.sampled_from(events.OverlapPolicy),
    window_ms=numbers,
    note=text,
)
event_kinds: dict[type, st.SearchStrategy[events.Event]] = {
    events.WorkerRegistered: _activations(events.WorkerRegistered),
    events.SessionReplaced: _activations(events.SessionReplaced),
    events.WorkerResurrected: _activations(events.WorkerResurrected),
    events.WorkerAdopted: st.builds(events.WorkerAdopted, principal=text),
    events.LeaseTermsChanged: st.builds(events.LeaseTermsChanged, granted_ms=durations),
    events.BindingsChanged: st.builds(
        events.BindingsChanged,
        bound=held,
        unbound=some_ids,
        resync=st.booleans(),
        confirmed=some_ids,
    ),
    events.ActivityHanded: st.builds(events.ActivityHanded, activity=bound_activities),
    events.BindingsEnded: st.builds(events.BindingsEnded, ids=some_ids, taken=st.booleans()),
    events.WorkerPaused: st.builds(events.WorkerPaused, reason=text, by=text),
    events.WorkerResumed: st.builds(events.WorkerResumed, by=text),
    events.DrainBegun: st.builds(events.DrainBegun, reason=text, deadline_ms=times, by=text),
    events.DisconnectGraceGranted: st.builds(events.DisconnectGraceGranted, grace_ms=durations),
    events.WorkerDescribed: st.builds(
        events.WorkerDescribed,
        profile=profiles,
        status=statuses,
        last_error=text,
        loop_lag_ms=durations,
        error_reported=st.booleans(),
    ),
    events.WorkerDeactivated: st.builds(
        events.WorkerDeactivated,
        reason=reasons,
        detail=text,
        at_ms=times,
        cleanup_delay_ms=durations,
        certificate=st.none() | certificates,
        by=text,
    ),
    events.WorkerCleanedUp: st.builds(
        events.WorkerCleanedUp,
        at_ms=times,
        tombstone_retention_ms=durations,
        keeps_sessions=st.booleans(),
    ),
    events.WorkerForgotten: st.builds(events.WorkerForgotten, epoch_floor=times, reason=text, by=text),
    events.ComponentChanged: st.builds(events.ComponentChanged, wall_ms=times, **component_fields),
    events.ComponentsOrdered: st.builds(events.ComponentsOrdered, order=orders),
    events.ComponentOrdersDone: st.builds(events.ComponentOrdersDone, through=counts),
    events.EntryChanged: st.builds(events.EntryChanged, wall_ms=times, **entry_fields),
    events.ReplicaSeen: st.builds(
        events.ReplicaSeen,
        session_id=text,
        host_name=text,
        process_id=text,
        uri=text,
        at_ms=times,
        wall_ms=times,
    ),
    events.ReplicaLeft: st.builds(events.ReplicaLeft, session_id=text),
    events.ActivityScheduled: _about_activity(
        events.ActivityScheduled,
        activity_type=text,
        task_queue=text,
        input=blobs,
        retry=retries,
        at_ms=times,
        due_ms=times,
        input_encoding=text,
        limits=time_limits,
        start_wall_ms=times,
        priority=priorities,
        by=text,
    ),
    events.ActivityStarted: _of_attempt(events.ActivityStarted, verify_ms=times),
    events.ActivityHeartbeatRecorded: _about_activity(
        events.ActivityHeartbeatRecorded,
        attempt=counts,
        at_ms=times,
        heartbeat_details=st.none() | blobs,
        heartbeat_details_encoding=text,
    ),
    events.ActivityTimedOut: _of_attempt(
        events.ActivityTimedOut,
        limit=st.sampled_from(TimeLimit),
        limit_ms=times,
        since_ms=times,
        since_wall_ms=times,
        heard_wall_ms=times,
        due_ms=times,
        message=text,
    ),
    events.ActivityCompleted: _of_attempt(events.ActivityCompleted, result=blobs, result_encoding=text),
    events.ActivityAttemptFailed: _of_attempt(
        events.ActivityAttemptFailed, message=text, due_ms=times, stack_trace=text
    ),
    events.ActivityFailed: _of_attempt(events.ActivityFailed, message=text, stack_trace=text),
    events.ActivityGivenBack: _of_attempt(events.ActivityGivenBack, reason=text),
    events.ActivityCancelled: _about_activity(events.ActivityCancelled, reason=text, at_ms=times, by=text),
    events.ActivityCancelRequested: _of_attempt(
        events.ActivityCancelRequested, task_queue=text, token=blobs, failures=numbers, deaths=numbers
    ),
    events.ActivityReleased: _about_activity(events.ActivityReleased, attempt=numbers),
    events.ActivityMadeAvailable: _about_activity(
        events.ActivityMadeAvailable, attempt=counts, at_ms=times, fresh=st.booleans(), by=text, reason=text
    ),
    events.ActivityQuarantined: _about_activity(events.ActivityQuarantined, deaths=numbers, at_ms=times),
    events.ActivityHandedOn: _about_activity(events.ActivityHandedOn, at_ms=times),
    events.ProgressReported: st.builds(
        events.ProgressReported,
        unit=text,
        worker=text,
        successes=numbers,
        error=text,
        report_id=text,
        errors=numbers,
    ),
    events.ProgressForgotten: st.builds(events.ProgressForgotten, unit=text, reason=text, by=text),
    events.ScheduleSaved: st.builds(
        events.ScheduleSaved, schedule_id=text, spec=schedule_specs, next_ms=times, by=text
    ),
    events.SchedulePaused: st.builds(events.SchedulePaused, schedule_id=text, reason=text, by=text),
    events.ScheduleResumed: st.builds(
        events.ScheduleResumed, schedule_id=text, next_ms=times, reason=text, by=text
    ),
    events.ScheduleFired: st.builds(
        events.ScheduleFired, schedule_id=text, activity_id=text, tick_ms=times, next_ms=times, by=text
    ),
    events.ScheduleTicksDropped: st.builds(
        events.ScheduleTicksDropped,
        schedule_id=text,
        count=counts,
        first_ms=times,
        last_ms=times,
        overlapping=st.booleans(),
        next_ms=times,
    ),
    events.ScheduleDeleted: st.builds(events.ScheduleDeleted, schedule_id=text, reason=text, by=text),
    events.ConcurrencyLimitSet: st.builds(
        events.ConcurrencyLimitSet, workflow_id=text, maximum=numbers, reason=text, by=text
    ),
    events.ConcurrencyLimitRemoved: st.builds(
        events.ConcurrencyLimitRemoved, workflow_id=text, reason=text, by=text
    ),
    events.ConfigChanged: st.builds(
        events.ConfigChanged, set=settings, unset=st.lists(text, max_size=3).map(tuple), reason=text, by=text
    ),
    events.ShardTaken: st.builds(events.ShardTaken, epoch=counts, owner=text),
}

renewed = st.builds(LeaseRenewed, numbers, times, numbers, numbers)

by_id = held.map(lambda activities: freeze_bindings({activity.id: activity for activity in activities}))
standings = st.just(NO_STANDING) | st.builds(
    Standing,
    paused=st.booleans(),
    draining=st.booleans(),
    drain_deadline_ms=times,
    grace_ms=durations,
    loop_lag_ms=durations,
    handed=st.dictionaries(activity_ids, st.booleans(), max_size=4).map(
        lambda handed: MappingProxyType(handed) if handed else NO_HANDED
    ),
    component=st.none() | components,
    orders=order_books,
    entry=st.none() | entries,
    former=st.lists(st.builds(FormerSession, text, numbers), max_size=3).map(tuple),
    last_error_wall_ms=times,
)


def make_worker(**fields: Any) -> Worker:
    """Hypothesis would take the fields of the tuple beneath for those of the constructor."""
    return Worker(**fields)


workers = st.builds(
    make_worker,
    number=counts,
    principal=text,
    state=st.sampled_from(WorkerState),
    session_id=text,
    sequence=numbers,
    epoch=counts,
    granted_ms=durations,
    renewed_ms=times,
    deadline_ms=times,
    bindings=by_id,
    lost=by_id,
    superseded=st.lists(text, max_size=3).map(tuple),
    profile=profiles,
    status=statuses,
    last_error=text,
    successes=numbers,
    errors=numbers,
    resync=st.booleans(),
    inactive_reason=st.none() | reasons,
    inactive_detail=text,
    standing=standings,
    wall_offset_ms=offsets,
    heartbeats=numbers,
)
schedules = st.builds(
    Schedule,
    spec=schedule_specs,
    created_ms=times,
    updated_ms=times,
    next_ms=times,
    paused=st.booleans(),
    pause_reason=text,
    last_tick_ms=times,
    fired=numbers,
    missed=numbers,
    overlapped=numbers,
    firings=st.lists(st.builds(Firing, text, times, times), max_size=3).map(tuple),
)
units = st.builds(
    UnitProgress,
    created_wall_ms=times,
    updated_wall_ms=times,
    successes=numbers,
    errors=numbers,
    last_success_wall_ms=times,
    last_success_worker=text,
    last_error_wall_ms=times,
    last_error=text,
    last_error_worker=text,
    failing=st.booleans(),
    report_ids=st.lists(text, max_size=3).map(tuple),
)
activities = st.builds(
    Activity,
    id=activity_ids,
    state=st.sampled_from(ActivityState),
    attempt=counts,
    task_queue=text,
    token=st.binary(max_size=20),
    releases=st.lists(st.builds(ReleasedAttempt, text, counts, counts), max_size=REMEMBERED_RELEASES_MAX).map(
        tuple
    ),
    type=text,
    input=blobs,
    retry=st.none() | retries,
    worker=text,
    epoch=numbers,
    since_ms=times,
    since_wall_ms=st.none() | times,
    due_ms=times,
    failures=numbers,
    deaths=numbers,
    last_failure=text,
    limits=time_limits,
    close_by_ms=times,
    heard_ms=times,
    heard_wall_ms=times,
    details=blobs,
    details_encoding=text,
    details_wall_ms=times,
    start_wall_ms=times,
    priority=priorities,
    timed_out=text,
    result=blobs,
    end=st.none() | st.builds(EndedAttempt, text, counts, counts, text),
)
