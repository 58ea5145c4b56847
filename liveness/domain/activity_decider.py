"""decide, for activities: (activity, command, time) → events, or a refusal that changes nothing.

Only the worker's shard knows whether its lease is live, so the caller checks that. These functions check the holder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from liveness.domain.activity import (
    ATTEMPT_MAX,
    FINISHED_ACTIVITY_STATES,
    Activity,
    ActivityState,
    LimitEnd,
    ReleasedAttempt,
    is_due,
)
from liveness.domain.errors import (
    ActivityDiffers,
    ActivityHeld,
    ActivityNotAvailable,
    ActivityNotRetryable,
    FencedOff,
)
from liveness.domain.errors import ActivityFinished as ActivityFinishedError
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
    Priority,
    Retry,
    TimeLimit,
    TimeLimits,
)
from liveness.domain.keys import ActivityId
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask

ActivityEvents = tuple[ActivityEvent, ...]

STARTED = ActivityState.STARTED


class ActivitySpec(NamedTuple):
    type: str
    task_queue: str
    input: bytes
    retry: Retry
    input_encoding: str = ""
    limits: TimeLimits = NO_LIMITS
    priority: Priority = DEFAULT_PRIORITY


class Start(NamedTuple):
    """When a new activity becomes available."""

    delay_ms: int = 0
    wall_ms: int = 0
    """The absolute start; 0 for none. `delay_ms` is the time until then."""


AT_ONCE = Start()


class HeartbeatDetails(NamedTuple):
    """How far an attempt has come, in its worker's own words."""

    data: bytes
    encoding: str = ""


class AttemptHolder(NamedTuple):
    """The fencing token: the worker, its lease epoch, and the attempt that it was given."""

    worker: str
    epoch: int
    attempt: int


def current_holder(activity: Activity) -> AttemptHolder:
    return AttemptHolder(activity.worker, activity.epoch, activity.attempt)


def format_activity_id(id: ActivityId) -> str:
    return "/".join(id)


def _id_fields(id: ActivityId) -> dict[str, Any]:
    return {"run_id": id.run_id, "activity_id": id.activity_id}


def schedule(
    id: ActivityId, activity: Activity | None, spec: ActivitySpec, at_ms: int, start: Start, by: str = ""
) -> ActivityEvents:
    """Schedule a new activity. Scheduling it again with the same spec changes nothing."""
    if activity is None:
        return (_scheduled(id, spec, at_ms, start, by),)
    known = (activity.type, activity.task_queue, activity.input, activity.retry)
    for name, given, kept in zip(
        ("type", "task queue", "input", "retry policy"), spec[:4], known, strict=True
    ):
        if given != kept:
            raise ActivityDiffers(activity=format_activity_id(id), what=name)
    if spec.limits != activity.limits:
        raise ActivityDiffers(activity=format_activity_id(id), what="time limits")
    if spec.priority != activity.priority:
        raise ActivityDiffers(activity=format_activity_id(id), what="priority")
    # A client that names no encoding, as older ones do, may repeat what another client scheduled.
    if spec.input_encoding and activity.input_encoding not in ("", spec.input_encoding):
        raise ActivityDiffers(activity=format_activity_id(id), what="input encoding")
    return ()


def _scheduled(
    id: ActivityId, spec: ActivitySpec, at_ms: int, start: Start = AT_ONCE, by: str = ""
) -> ActivityScheduled:
    return ActivityScheduled(
        **_id_fields(id), activity_type=spec.type, task_queue=spec.task_queue, input=spec.input, retry=spec.retry,
        at_ms=at_ms, due_ms=at_ms + start.delay_ms, input_encoding=spec.input_encoding, limits=spec.limits,
        start_wall_ms=start.wall_ms, priority=spec.priority, by=by,
    )  # fmt: skip


def start(
    activity: Activity, worker: str, epoch: int, at_ms: int, verify_ms: int, *, floor: int
) -> ActivityEvents:
    """Hand an available activity to a worker. `floor`: the lowest attempt that may be given out."""
    assert activity.state is ActivityState.AVAILABLE, "only an available activity is handed out"
    attempt = attempt_to_start(activity, floor)
    return (_started(activity.id, worker, epoch, attempt, at_ms, verify_ms),)


def attempt_to_start(activity: Activity, floor: int) -> int:
    # An activity that has reached the limit stays there: its later holders differ in worker and epoch only.
    return min(max(activity.attempt, floor), ATTEMPT_MAX)


def _next_attempt(attempt: int) -> int:
    return min(attempt, ATTEMPT_MAX) + 1


def _started(
    id: ActivityId, worker: str, epoch: int, attempt: int, at_ms: int, verify_ms: int
) -> ActivityStarted:
    return ActivityStarted(
        **_id_fields(id), worker=worker, epoch=epoch, attempt=attempt, at_ms=at_ms, verify_ms=verify_ms
    )


def claim(
    id: ActivityId,
    activity: Activity | None,
    spec: ActivitySpec,
    worker: str,
    epoch: int,
    at_ms: int,
    verify_ms: int,
    *,
    floor: int,
) -> ActivityEvents:
    """Give a worker an activity that it found by itself. Repeating the claim in the same lease changes nothing."""
    if activity is None:
        return (
            _scheduled(id, spec, at_ms),
            _started(id, worker, epoch, floor, at_ms, verify_ms),
        )
    if activity.state is ActivityState.AVAILABLE:
        return start(activity, worker, epoch, at_ms, verify_ms, floor=floor)
    if activity.state is STARTED:
        if (activity.worker, activity.epoch) == (worker, epoch):
            return ()
        raise ActivityHeld(activity=format_activity_id(id), holder=activity.worker)
    if activity.state in FINISHED_ACTIVITY_STATES:
        raise ActivityFinishedError(activity=format_activity_id(id), state=activity.state.name)
    raise ActivityNotAvailable(activity=format_activity_id(id), state=activity.state.name)


def complete(
    activity: Activity, holder: AttemptHolder, result: bytes, at_ms: int, *, result_encoding: str = ""
) -> ActivityEvents:
    if _is_repeated_end(activity, holder, ActivityCompleted):
        return ()
    _check_held(activity, holder)
    end_fields = _end_fields(activity, holder, at_ms)
    return (ActivityCompleted(**end_fields, result=result, result_encoding=result_encoding),)


def record_heartbeat(
    activity: Activity, holder: AttemptHolder, details: HeartbeatDetails | None, at_ms: int
) -> ActivityEvents:
    _check_held(activity, holder)
    return (_heartbeat_recorded(activity, details, at_ms),)


def _heartbeat_recorded(
    activity: Activity, details: HeartbeatDetails | None, at_ms: int
) -> ActivityHeartbeatRecorded:
    return ActivityHeartbeatRecorded(
        **_id_fields(activity.id),
        attempt=activity.attempt,
        at_ms=at_ms,
        heartbeat_details=None if details is None else details.data,
        heartbeat_details_encoding="" if details is None else details.encoding,
    )


def time_out(activity: Activity, end: LimitEnd, at_ms: int) -> ActivityEvents:
    """End what a time limit that is over limits: the attempt, which is tried again by its retry policy, or the activity."""
    is_held = activity.state is STARTED
    ends_attempt = end.limit in (TimeLimit.START_TO_CLOSE, TimeLimit.HEARTBEAT)
    failures = activity.failures + is_held
    retry = activity.retry or Retry()
    due_ms = 0
    outcome = "the activity failed"
    if ends_attempt:
        outcome = "no attempt is left"
        if not _has_exhausted_retries(retry, failures):
            due_ms = at_ms + backoff_ms(retry, failures)
            outcome = "it is tried again"
            if 0 < activity.close_by_ms <= due_ms:
                due_ms, outcome = 0, "no time is left for another attempt"
    since_wall_ms = (activity.since_wall_ms or 0) - (activity.since_ms - end.since_ms)
    if end.limit is TimeLimit.HEARTBEAT and activity.heard_wall_ms:
        since_wall_ms = activity.heard_wall_ms
    return (
        ActivityTimedOut(
            **_id_fields(activity.id), limit=end.limit, limit_ms=end.limit_ms, at_ms=at_ms, since_ms=end.since_ms,
            since_wall_ms=since_wall_ms, attempt=activity.attempt, worker=activity.worker, epoch=activity.epoch,
            heard_wall_ms=activity.heard_wall_ms, due_ms=due_ms,
            message=f"{_time_out_reason(activity, end)}; {outcome}",
        ),
    )  # fmt: skip


def _time_out_reason(activity: Activity, end: LimitEnd) -> str:
    limit = f"{end.limit} of {_seconds(end.limit_ms)}"
    if end.limit is TimeLimit.SCHEDULE_TO_START:
        return f"{limit} is over: no worker took the activity in time"
    if end.limit is TimeLimit.SCHEDULE_TO_CLOSE:
        where = {
            STARTED: f"attempt {activity.attempt} was running on worker {activity.worker}",
            ActivityState.AVAILABLE: f"attempt {activity.attempt} was waiting for a worker",
        }.get(activity.state, f"attempt {activity.attempt} was not due yet")
        return f"{limit} is over: {where}"
    attempt = f"attempt {activity.attempt} on worker {activity.worker}"
    if end.limit is TimeLimit.START_TO_CLOSE:
        return f"{limit} is over: {attempt} was still running, and the worker alive"
    return f"{limit} is over: {attempt} has sent no heartbeat since its {'last' if activity.heard_wall_ms else 'start'}"


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:g} s"


def fail(
    activity: Activity,
    holder: AttemptHolder,
    message: str,
    at_ms: int,
    *,
    retryable: bool = True,
    after_ms: int | None = None,
    quarantine: bool = False,
    details: HeartbeatDetails | None = None,
    stack_trace: str = "",
) -> ActivityEvents:
    """`quarantine`: an operator decides what becomes of the activity."""
    if _is_repeated_end(activity, holder, ActivityAttemptFailed, ActivityFailed):
        return ()
    _check_held(activity, holder)
    retry = activity.retry or Retry()
    end_fields = {
        **_end_fields(activity, holder, at_ms),
        "message": message,
        "stack_trace": stack_trace,
    }
    failures = activity.failures + 1
    heard = () if details is None else (_heartbeat_recorded(activity, details, at_ms),)
    if quarantine:
        return (
            *heard,
            ActivityAttemptFailed(**end_fields, due_ms=at_ms),
            ActivityQuarantined(**_id_fields(activity.id), deaths=0, at_ms=at_ms),
        )
    if not retryable or _has_exhausted_retries(retry, failures):
        return (*heard, ActivityFailed(**end_fields))
    if after_ms is None:
        after_ms = backoff_ms(retry, failures)
    if 0 < activity.close_by_ms <= at_ms + after_ms:
        # The limit would end the activity before its next attempt could start.
        return (*heard, ActivityFailed(**end_fields))
    return (*heard, ActivityAttemptFailed(**end_fields, due_ms=at_ms + after_ms))


def give_back(activity: Activity, holder: AttemptHolder, reason: str, at_ms: int) -> ActivityEvents:
    """End the attempt without an outcome. It does not count as a failure."""
    if _is_repeated_end(activity, holder, ActivityGivenBack):
        return ()
    _check_held(activity, holder)
    return (
        ActivityGivenBack(**_end_fields(activity, holder, at_ms), reason=reason),
        ActivityMadeAvailable(
            **_id_fields(activity.id), attempt=_next_attempt(activity.attempt), at_ms=at_ms
        ),
    )


def _end_fields(activity: Activity, holder: AttemptHolder, at_ms: int) -> dict[str, Any]:
    return {**_id_fields(activity.id), **holder._asdict(), "at_ms": at_ms}


def _is_repeated_end(activity: Activity, holder: AttemptHolder, *events: type) -> bool:
    end = activity.end
    return (
        end is not None
        and (end.worker, end.epoch, end.attempt) == holder
        and end.event in {kind.__name__ for kind in events}
    )


def _check_held(activity: Activity, holder: AttemptHolder) -> None:
    if activity.state is not STARTED:
        why = f"the activity is {activity.state.name}"
    elif activity.worker != holder.worker:
        why = f"attempt {activity.attempt} is held by worker {activity.worker}"
    elif activity.attempt != holder.attempt:
        why = f"it holds attempt {activity.attempt}"
    else:
        return
    raise fenced_off_error(activity.id, holder, why)


def fenced_off_error(id: ActivityId, holder: AttemptHolder, why: str) -> FencedOff:
    return FencedOff(
        activity=format_activity_id(id),
        worker=holder.worker,
        epoch=holder.epoch,
        attempt=holder.attempt,
        why=why,
    )


def backoff_ms(retry: Retry, failures: int) -> int:
    """The delay before the attempt that follows `failures` failures."""
    try:
        wait_ms = retry.initial_ms * retry.coefficient ** (failures - 1)
    except OverflowError:
        return retry.max_ms
    return int(min(wait_ms, retry.max_ms))


def _has_exhausted_retries(retry: Retry, failures: int) -> bool:
    return 0 < retry.max_attempts <= failures


def cancel(activity: Activity, reason: str, at_ms: int, by: str = "") -> ActivityEvents:
    if activity.state is ActivityState.CANCELLED:
        return ()
    if activity.state in FINISHED_ACTIVITY_STATES:
        raise ActivityFinishedError(activity=format_activity_id(activity.id), state=activity.state.name)
    return (ActivityCancelled(**_id_fields(activity.id), reason=reason, at_ms=at_ms, by=by),)


def restart(activity: Activity, at_ms: int, by: str = "", reason: str = "") -> ActivityEvents:
    if activity.state not in (ActivityState.QUARANTINED, ActivityState.FAILED):
        raise ActivityNotRetryable(activity=format_activity_id(activity.id), state=activity.state.name)
    return (
        ActivityMadeAvailable(
            **_id_fields(activity.id),
            attempt=_next_attempt(activity.attempt),
            at_ms=at_ms,
            fresh=True,
            by=by,
            reason=reason,
        ),
    )


def make_available_if_due(activity: Activity, at_ms: int, wall_ms: int) -> ActivityEvents:
    """Make a WAITING activity available once its due time has passed."""
    if activity.state is not ActivityState.WAITING or not is_due(activity, at_ms, wall_ms):
        return ()
    return (ActivityMadeAvailable(**_id_fields(activity.id), attempt=activity.attempt, at_ms=at_ms),)


def hand_on(activity: Activity, at_ms: int) -> ActivityEvents:
    """Record that another engine took the activity."""
    if activity.state is not ActivityState.RELEASED:
        return ()
    return (ActivityHandedOn(**_id_fields(activity.id), at_ms=at_ms),)


def cancel_hand_on(activity: Activity, at_ms: int) -> ActivityEvents:
    """Make a RELEASED activity available here, because no engine receives its task queue any more."""
    return (ActivityMadeAvailable(**_id_fields(activity.id), attempt=activity.attempt, at_ms=at_ms),)


def contradicts_binding(activity: Activity, worker: str, attempt: int) -> bool:
    """Whether a worker must not hold an attempt that it declared by heartbeat alone: the activity is finished, or held by
    another worker or in another attempt. Another engine that took the activity gives it to any worker."""
    if activity.state is STARTED:
        return (activity.worker, activity.attempt) != (worker, attempt)
    return activity.state in FINISHED_ACTIVITY_STATES and activity.state is not ActivityState.HANDED_ON


def is_stale_reschedule(activity: Activity | None, task: ActivityRescheduleTask) -> bool:
    """Whether the loss that a task reports was handled already, or no longer matters."""
    if activity is None:
        return False
    if activity.state in FINISHED_ACTIVITY_STATES and activity.state is not ActivityState.HANDED_ON:
        return True
    if activity.state is ActivityState.QUARANTINED:
        return True
    if ReleasedAttempt(task.worker, task.epoch, task.activity.attempt) in activity.releases:
        return True
    if activity.state is STARTED:
        held = (activity.worker, activity.attempt) == (task.worker, task.activity.attempt)
        return not held or task.epoch < activity.epoch
    # No worker holds a managed activity in this state, and its next attempt is above every attempt that was lost.
    return activity.is_managed and task.activity.attempt < activity.attempt


def reschedule(
    activity: Activity | None,
    task: ActivityRescheduleTask,
    policy: Policy,
    at_ms: int,
    *,
    to_other_engine: bool = False,
) -> ActivityEvents:
    """Take an attempt from the worker that lost it. A repeated delivery of the task changes nothing.

    `to_other_engine`: another engine receives the reschedules of this task queue.
    """
    if is_stale_reschedule(activity, task):
        return ()
    lost = task.activity
    deaths = failures = 0
    retry = Retry()
    if activity is not None:
        failures, retry = activity.failures, activity.retry or retry
        # Deaths are in a row only if the attempt that died is the latest one.
        deaths = activity.deaths if lost.attempt == activity.attempt else 0
        if activity.is_managed:
            # The worker may have reported the binding without its task queue; the activity's own is authoritative.
            lost = lost._replace(task_queue=activity.task_queue, token=activity.token)
    deaths = deaths + 1 if task.died else 0
    failures += task.died
    id = lost.id
    _, run_id, activity_id = id
    # Written out, because a mass expiry comes here a hundred thousand times.
    taken = (
        ActivityCancelRequested(
            run_id=run_id, activity_id=activity_id, attempt=lost.attempt, task_queue=lost.task_queue, token=lost.token,
            worker=task.worker, epoch=task.epoch, failures=failures, deaths=deaths, at_ms=at_ms,
        ),
        ActivityReleased(run_id=run_id, activity_id=activity_id),
    )  # fmt: skip
    deaths_max = policy.max_worker_deaths if retry.max_deaths is None else retry.max_deaths
    if 0 < deaths_max <= deaths:
        return (*taken, ActivityQuarantined(**_id_fields(id), deaths=deaths, at_ms=at_ms))
    if task.died and _has_exhausted_retries(retry, failures):
        message = f"worker {task.worker} was lost with the last attempt allowed"
        ended = AttemptHolder(task.worker, task.epoch, lost.attempt)._asdict()
        return (*taken, ActivityFailed(**_id_fields(id), **ended, at_ms=at_ms, message=message))
    attempt = max(_next_attempt(max(activity.attempt if activity else 0, lost.attempt)), policy.token_floor)
    if to_other_engine:
        return (taken[0], ActivityReleased(**_id_fields(id), attempt=attempt))
    available = ActivityMadeAvailable(run_id=run_id, activity_id=activity_id, attempt=attempt, at_ms=at_ms)
    return (*taken, available)
