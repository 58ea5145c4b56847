"""The activity as a value, and evolve: (activity, event) → activity.

            ┌────────── failed, to be tried again ── WAITING ◄── scheduled for later
            │                                           │ its time has come
            │      scheduled ──► AVAILABLE ◄────────────┘
            │                      │   ▲ given back, or its worker was lost
            │       polled, claimed│   │
            └─────────────────── STARTED ──► COMPLETED · FAILED · CANCELLED
                                    └─ its workers died too often ──► QUARANTINED

A time limit that is over ends a held attempt as a failure, or an activity in any of the three upper states for good.

An activity that a worker bound by heartbeat alone becomes known here only when that worker is lost. It is then AVAILABLE,
or RELEASED and then HANDED_ON if another engine receives the reschedules of its task queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import singledispatch
from typing import NamedTuple

from liveness.domain.events import (
    DEFAULT_PRIORITY,
    NO_LIMITS,
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCancelRequested,
    ActivityCompleted,
    ActivityEvent,
    ActivityFailed,
    ActivityGivenBack,
    ActivityHandedOn,
    ActivityHeartbeatRecorded,
    ActivityMadeAvailable,
    ActivityQuarantined,
    ActivityReleased,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
    AttemptEnded,
    Priority,
    Retry,
    TimeLimit,
    TimeLimits,
)
from liveness.domain.keys import ActivityId, ActivityKey
from liveness.domain.reactions import ActivityDueTask, VerifyDispatchTask
from liveness.domain.worker import BoundActivity

REMEMBERED_RELEASES_MAX = 32
START_LOOK_MS_MIN, START_LOOK_MS_MAX = 1_000, 300_000
ATTEMPT_MAX = 2_000_000_000
"""The highest attempt that is handed out, or that a worker may declare. It is far enough below 2^31, the limit of the API,
that the number after it fits too."""


class ActivityState(IntEnum):
    CANCEL_REQUESTED = 1
    RELEASED = 2
    AVAILABLE = 3
    STARTED = 4
    WAITING = 5
    COMPLETED = 6
    FAILED = 7
    CANCELLED = 8
    QUARANTINED = 9
    HANDED_ON = 10


FINISHED_ACTIVITY_STATES = (
    ActivityState.COMPLETED,
    ActivityState.FAILED,
    ActivityState.CANCELLED,
    ActivityState.HANDED_ON,
)
"""No timer changes these any more: they need not be in memory, and retention deletes them."""


class ReleasedAttempt(NamedTuple):
    """An attempt that was taken from a worker. It has at most one effect, however often its task is delivered."""

    worker: str
    epoch: int
    attempt: int


class EndedAttempt(NamedTuple):
    """The end of the last attempt that its worker ended, so that a repeated call gets the same answer."""

    worker: str
    epoch: int
    attempt: int
    event: str


class Activity(NamedTuple):
    id: ActivityId
    state: ActivityState
    attempt: int
    """While STARTED, the attempt that is held; otherwise the next one. It rises with each hand-out."""
    task_queue: str
    token: bytes
    """From the heartbeat that bound it."""
    releases: tuple[ReleasedAttempt, ...]
    """Newest last."""
    type: str = ""
    input: bytes = b""
    retry: Retry | None = None
    """None for an activity that this service never scheduled or handed out."""
    worker: str = ""
    """The holder while STARTED."""
    epoch: int = 0
    since_ms: int = 0
    """When the activity entered its state."""
    since_wall_ms: int | None = None
    """The same for people; None for a row of a version that did not store it."""
    due_ms: int = 0
    """WAITING: when it becomes available. STARTED: when to verify that the worker received it."""
    failures: int = 0
    """Attempts that failed or were lost with their worker."""
    deaths: int = 0
    """How many attempts in a row, up to the last, died with their worker."""
    last_failure: str = ""
    result: bytes = b""
    end: EndedAttempt | None = None
    input_encoding: str = ""
    """How the client encoded the input; empty if it did not say. The result has its own."""
    result_encoding: str = ""
    limits: TimeLimits = NO_LIMITS
    close_by_ms: int = 0
    """When `schedule_to_close` is over; 0 without that limit."""
    heard_ms: int = 0
    """STARTED: when the attempt last sent a heartbeat, or else when it started."""
    heard_wall_ms: int = 0
    """When an attempt last sent a heartbeat; 0 if the present attempt has sent none."""
    details: bytes = b""
    """What the last heartbeat that had details said; the next attempt is given it."""
    details_encoding: str = ""
    details_wall_ms: int = 0
    """When; 0 if no attempt has reported details."""
    start_wall_ms: int = 0
    """WAITING for its absolute start: the wall time of it. 0 otherwise."""
    priority: Priority = DEFAULT_PRIORITY
    timed_out: str = ""
    """The `TimeLimit` that ended the last attempt, or the activity; empty if none did."""

    @property
    def is_managed(self) -> bool:
        """Whether this service, not another engine, decides which worker holds the activity."""
        return self.retry is not None

    def bound(self) -> BoundActivity:
        return BoundActivity(*self.id, self.attempt, self.task_queue, self.token)


class LimitEnd(NamedTuple):
    """A time limit of an activity, and when it is over."""

    limit: TimeLimit
    limit_ms: int
    since_ms: int
    end_ms: int


def limit_ends(activity: Activity) -> list[LimitEnd]:
    """The time limits that run in the activity's present state."""
    if activity.limits is NO_LIMITS:
        return []
    limits, state, ends = activity.limits, activity.state, []
    if activity.close_by_ms and state in _UNDER_WAY:
        limit_ms = limits.schedule_to_close_ms
        since_ms = activity.close_by_ms - limit_ms
        ends.append(LimitEnd(TimeLimit.SCHEDULE_TO_CLOSE, limit_ms, since_ms, activity.close_by_ms))
    running: list[tuple[TimeLimit, int, int]] = []
    if state is ActivityState.STARTED:
        running = [
            (TimeLimit.START_TO_CLOSE, limits.start_to_close_ms, activity.since_ms),
            (TimeLimit.HEARTBEAT, limits.heartbeat_ms, activity.heard_ms),
        ]
    elif state is ActivityState.AVAILABLE:
        running = [(TimeLimit.SCHEDULE_TO_START, limits.schedule_to_start_ms, activity.since_ms)]
    ends += [LimitEnd(limit, ms, since_ms, since_ms + ms) for limit, ms, since_ms in running if ms]
    return ends


_UNDER_WAY = (ActivityState.WAITING, ActivityState.AVAILABLE, ActivityState.STARTED)


def activity_timer_ms(activity: Activity, now_ms: int, wall_ms: int) -> int | None:
    """When to look at the activity: it becomes available, is to be verified, or a time limit is over. `now_ms` on its shard's
    clock and `wall_ms` are the same moment."""
    times = [end.end_ms for end in limit_ends(activity)]
    if activity.state is ActivityState.WAITING:
        times.append(due_look_ms(activity, now_ms, wall_ms))
    elif activity.state is ActivityState.STARTED:
        times.append(activity.due_ms)
    return min(times, default=None)


def due_look_ms(activity: Activity, now_ms: int, wall_ms: int) -> int:
    """When to look whether a WAITING activity is due.

    An absolute start is a wall time. The shard's clock stands still during outages and stalls, and wall clocks jump, so that
    nobody knows when it will be on that clock. A look after half of the time that is left, at the least a second, sees each start
    at most a second late, whatever the two clocks did in the first half, and costs few looks."""
    if not activity.start_wall_ms:
        return activity.due_ms
    left_ms = max(activity.start_wall_ms - wall_ms, 0)
    return now_ms + (
        left_ms
        if left_ms <= START_LOOK_MS_MIN
        else min(max(left_ms // 2, START_LOOK_MS_MIN), START_LOOK_MS_MAX)
    )


def is_due(activity: Activity, now_ms: int, wall_ms: int) -> bool:
    return wall_ms >= activity.start_wall_ms if activity.start_wall_ms else now_ms >= activity.due_ms


def activity_timer(key: ActivityKey, activity: Activity) -> VerifyDispatchTask | ActivityDueTask | None:
    """The timer that fires at the activity's `due_ms`."""
    if activity.state is ActivityState.STARTED:
        return VerifyDispatchTask(key)
    if activity.state is ActivityState.WAITING:
        return ActivityDueTask(key)
    return None


class ImpossibleActivityEvent(Exception):
    """The log holds an event that cannot follow the activity's previous one: the log or this program is broken."""


def evolve(activity: Activity | None, event: ActivityEvent, workflow_id: str, wall_ms: int) -> Activity:
    """Return the next state. `wall_ms`: the wall time that the log has for the event."""
    if isinstance(event, ActivityHeartbeatRecorded):
        return _heard(activity, event, wall_ms)
    # Every other event brings the activity into a state.
    return _next_state(activity, event, workflow_id)._replace(since_wall_ms=wall_ms)


def evolve_all(
    activity: Activity | None, events: Sequence[ActivityEvent], workflow_id: str, wall_ms: int
) -> Activity | None:
    """`evolve` for several events. What most workers that die leave to each of their activities is folded in one step."""
    if len(events) == 3 and (activity is None or not activity.start_wall_ms):
        taken, released, available = events
        if (
            type(taken) is ActivityCancelRequested
            and type(released) is ActivityReleased
            and type(available) is ActivityMadeAvailable
            and not available.fresh
        ):
            before = activity or _unknown(taken, workflow_id)
            release = ReleasedAttempt(taken.worker, taken.epoch, taken.attempt)
            return before._replace(
                state=ActivityState.AVAILABLE,
                attempt=available.attempt,
                task_queue=taken.task_queue,
                token=taken.token,
                releases=(*before.releases, release)[-REMEMBERED_RELEASES_MAX:],
                worker="",
                epoch=0,
                since_ms=available.at_ms,
                since_wall_ms=wall_ms,
                due_ms=0,
                failures=taken.failures,
                deaths=taken.deaths,
            )
    for event in events:
        activity = evolve(activity, event, workflow_id, wall_ms)
    return activity


def _unknown(event: ActivityCancelRequested, workflow_id: str) -> Activity:
    """An activity that this service learns of when a worker has lost it."""
    id = ActivityId(workflow_id, event.run_id, event.activity_id)
    return Activity(id, ActivityState.CANCEL_REQUESTED, 0, event.task_queue, event.token, ())


def _heard(activity: Activity | None, event: ActivityHeartbeatRecorded, wall_ms: int) -> Activity:
    if activity is None or activity.state is not ActivityState.STARTED:
        raise ImpossibleActivityEvent("ActivityHeartbeatRecorded about an activity that nobody holds")
    heard = activity._replace(heard_ms=event.at_ms, heard_wall_ms=wall_ms)
    if event.heartbeat_details is None:
        return heard
    return heard._replace(
        details=event.heartbeat_details,
        details_encoding=event.heartbeat_details_encoding,
        details_wall_ms=wall_ms,
    )


def _next_state(activity: Activity | None, event: ActivityEvent, workflow_id: str) -> Activity:
    if isinstance(event, ActivityScheduled):
        if activity is not None:
            raise ImpossibleActivityEvent("ActivityScheduled about an activity that exists")
        return _scheduled(event, workflow_id)
    if isinstance(event, ActivityCancelRequested):
        return _cancel_requested(activity, event, workflow_id)
    if activity is None:
        raise ImpossibleActivityEvent(f"{type(event).__name__} about an activity that is not known")
    return _evolve(event, activity)


def _scheduled(event: ActivityScheduled, workflow_id: str) -> Activity:
    later = event.due_ms > event.at_ms
    has_start = later and event.start_wall_ms > 0
    return Activity(
        id=ActivityId(workflow_id, event.run_id, event.activity_id),
        state=ActivityState.WAITING if later else ActivityState.AVAILABLE,
        attempt=1,
        task_queue=event.task_queue,
        token=b"",
        releases=(),
        type=event.activity_type,
        input=event.input,
        input_encoding=event.input_encoding,
        retry=event.retry,
        since_ms=event.at_ms,
        due_ms=event.due_ms if later else 0,
        limits=event.limits if any(event.limits) else NO_LIMITS,
        # With an absolute start, nobody knows yet when that is on the shard's clock.
        close_by_ms=0 if has_start else _close_by_ms(event.limits, max(event.due_ms, event.at_ms)),
        start_wall_ms=event.start_wall_ms if has_start else 0,
        priority=event.priority if event.priority != DEFAULT_PRIORITY else DEFAULT_PRIORITY,
    )


def _close_by_ms(limits: TimeLimits, from_ms: int) -> int:
    return from_ms + limits.schedule_to_close_ms if limits.schedule_to_close_ms else 0


def _cancel_requested(
    activity: Activity | None, event: ActivityCancelRequested, workflow_id: str
) -> Activity:
    release = ReleasedAttempt(event.worker, event.epoch, event.attempt)
    if activity is None:
        activity = _unknown(event, workflow_id)
    return activity._replace(
        state=ActivityState.CANCEL_REQUESTED,
        attempt=max(activity.attempt, event.attempt),
        task_queue=event.task_queue,
        token=event.token,
        releases=(*activity.releases, release)[-REMEMBERED_RELEASES_MAX:],
        worker="",
        epoch=0,
        due_ms=0,
        since_ms=event.at_ms,
        failures=event.failures,
        deaths=event.deaths,
    )


@singledispatch
def _evolve(event: object, activity: Activity) -> Activity:
    raise ImpossibleActivityEvent(f"{type(event).__name__} is not about an activity")


@_evolve.register
def _(event: ActivityStarted, activity: Activity) -> Activity:
    if activity.state is not ActivityState.AVAILABLE:
        raise ImpossibleActivityEvent(f"ActivityStarted about an activity that is {activity.state.name}")
    return activity._replace(
        state=ActivityState.STARTED,
        retry=activity.retry or Retry(),
        worker=event.worker,
        epoch=event.epoch,
        attempt=event.attempt,
        since_ms=event.at_ms,
        due_ms=event.verify_ms,
        heard_ms=event.at_ms if activity.limits is not NO_LIMITS else 0,
        heard_wall_ms=0,
    )


@_evolve.register
def _(event: ActivityTimedOut, activity: Activity) -> Activity:
    if activity.state not in _UNDER_WAY:
        raise ImpossibleActivityEvent(f"ActivityTimedOut about an activity that is {activity.state.name}")
    was_held = activity.state is ActivityState.STARTED
    return activity._replace(
        state=ActivityState.WAITING if event.due_ms else ActivityState.FAILED,
        attempt=event.attempt + 1 if event.due_ms else event.attempt,
        worker="",
        epoch=0,
        since_ms=event.at_ms,
        due_ms=event.due_ms,
        failures=activity.failures + was_held,
        start_wall_ms=0,
        deaths=0,
        last_failure=event.message,
        timed_out=event.limit.value,
    )


def _ended(event: AttemptEnded, activity: Activity, state: ActivityState) -> Activity:
    if activity.state is not ActivityState.STARTED:
        raise ImpossibleActivityEvent(
            f"{type(event).__name__} about an activity that is {activity.state.name}"
        )
    return activity._replace(
        state=state,
        worker="",
        epoch=0,
        since_ms=event.at_ms,
        due_ms=0,
        deaths=0,
        timed_out="",
        end=EndedAttempt(event.worker, event.epoch, event.attempt, type(event).__name__),
    )


@_evolve.register
def _(event: ActivityCompleted, activity: Activity) -> Activity:
    return _ended(event, activity, ActivityState.COMPLETED)._replace(
        result=event.result, result_encoding=event.result_encoding
    )


@_evolve.register
def _(event: ActivityAttemptFailed, activity: Activity) -> Activity:
    return _ended(event, activity, ActivityState.WAITING)._replace(
        attempt=event.attempt + 1,
        failures=activity.failures + 1,
        last_failure=event.message,
        due_ms=event.due_ms,
    )


@_evolve.register
def _(event: ActivityFailed, activity: Activity) -> Activity:
    # ActivityCancelRequested already counted the failure of an attempt that was lost with its worker.
    lost = activity.state is ActivityState.RELEASED
    started = activity._replace(state=ActivityState.STARTED) if lost else activity
    return _ended(event, started, ActivityState.FAILED)._replace(
        failures=activity.failures + (not lost),
        last_failure=event.message,
        end=activity.end
        if lost
        else EndedAttempt(event.worker, event.epoch, event.attempt, type(event).__name__),
    )


@_evolve.register
def _(event: ActivityGivenBack, activity: Activity) -> Activity:
    return _ended(event, activity, ActivityState.RELEASED)


@_evolve.register
def _(event: ActivityReleased, activity: Activity) -> Activity:
    return activity._replace(state=ActivityState.RELEASED, attempt=event.attempt or activity.attempt)


@_evolve.register
def _(event: ActivityMadeAvailable, activity: Activity) -> Activity:
    available = activity._replace(
        state=ActivityState.AVAILABLE, attempt=event.attempt, since_ms=event.at_ms, due_ms=0
    )
    if activity.start_wall_ms or event.fresh:
        available = available._replace(
            start_wall_ms=0, close_by_ms=_close_by_ms(activity.limits, event.at_ms)
        )
    return available._replace(failures=0, deaths=0, timed_out="") if event.fresh else available


@_evolve.register
def _(event: ActivityQuarantined, activity: Activity) -> Activity:
    quarantined = activity._replace(state=ActivityState.QUARANTINED, since_ms=event.at_ms, due_ms=0)
    if not event.deaths:
        return quarantined  # its last failure says why
    dead_workers = "its worker" if event.deaths == 1 else f"{event.deaths} workers in a row"
    return quarantined._replace(last_failure=f"quarantined: {dead_workers} died with it")


@_evolve.register
def _(event: ActivityHandedOn, activity: Activity) -> Activity:
    return activity._replace(state=ActivityState.HANDED_ON, since_ms=event.at_ms)


@_evolve.register
def _(event: ActivityCancelled, activity: Activity) -> Activity:
    return activity._replace(
        state=ActivityState.CANCELLED, worker="", epoch=0, since_ms=event.at_ms, due_ms=0,
        last_failure=event.reason,
    )  # fmt: skip
