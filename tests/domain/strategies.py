"""Values of the domain for property tests: any that the wire lets in, the odd ones included."""

from __future__ import annotations

from hypothesis import strategies as st

from liveness.domain import events
from liveness.domain.activity import REMEMBERED_RELEASES_MAX, Activity, ActivityState, Release
from liveness.domain.decider import ActivationT
from liveness.domain.events import LeaseRenewed
from liveness.domain.fold import freeze
from liveness.domain.keys import ActivityId
from liveness.domain.worker import BoundActivity, InactiveReason, Profile, Worker, WorkerState, WorkerStatus

INT64_MAX = 2**63 - 1

# Strings on the wire are valid UTF-8: no halves of surrogate pairs.
text = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, INT64_MAX)
counts = st.integers(1, INT64_MAX)
# Two of them added must stay a number that the store can hold.
times = st.integers(0, INT64_MAX // 2)
durations = st.integers(0, INT64_MAX // 2)

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
    )


settings = st.dictionaries(text, st.floats(0, allow_nan=False, allow_infinity=False), max_size=4)

# One strategy per kind of event that has a row of its own.
event_kinds: dict[type, st.SearchStrategy[events.Event]] = {
    events.WorkerRegistered: _activations(events.WorkerRegistered),
    events.SessionReplaced: _activations(events.SessionReplaced),
    events.WorkerResurrected: _activations(events.WorkerResurrected),
    events.LeaseTermsChanged: st.builds(events.LeaseTermsChanged, granted_ms=durations),
    events.BindingsChanged: st.builds(
        events.BindingsChanged,
        bound=held,
        unbound=st.lists(activity_ids, max_size=4).map(tuple),
        resync=st.booleans(),
    ),
    events.WorkerDescribed: st.builds(
        events.WorkerDescribed, profile=profiles, status=statuses, last_error=text
    ),
    events.WorkerDeactivated: st.builds(
        events.WorkerDeactivated, reason=reasons, detail=text, at_ms=times, cleanup_delay_ms=durations
    ),
    events.WorkerCleanedUp: st.builds(events.WorkerCleanedUp, at_ms=times, tombstone_retention_ms=durations),
    events.WorkerForgotten: st.just(events.WorkerForgotten()),
    events.ActivityCancelRequested: st.builds(
        events.ActivityCancelRequested,
        run_id=text,
        activity_id=text,
        attempt=counts,
        task_queue=text,
        token=st.binary(max_size=20),
        worker=text,
        epoch=counts,
    ),
    events.ActivityReleased: st.builds(events.ActivityReleased, run_id=text, activity_id=text),
    events.ActivityMadeAvailable: st.builds(
        events.ActivityMadeAvailable, run_id=text, activity_id=text, attempt=counts
    ),
    events.ConfigChanged: st.builds(
        events.ConfigChanged, set=settings, unset=st.lists(text, max_size=3).map(tuple)
    ),
    events.ShardTaken: st.builds(events.ShardTaken, epoch=counts, owner=text),
}

renewed = st.builds(LeaseRenewed, numbers, times, numbers, numbers)

by_id = held.map(lambda activities: freeze({activity.id: activity for activity in activities}))
workers = st.builds(
    Worker,
    number=counts,
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
)
activities = st.builds(
    Activity,
    id=activity_ids,
    state=st.sampled_from(ActivityState),
    attempt=counts,
    task_queue=text,
    token=st.binary(max_size=20),
    releases=st.lists(st.builds(Release, text, counts, counts), max_size=REMEMBERED_RELEASES_MAX).map(tuple),
)
