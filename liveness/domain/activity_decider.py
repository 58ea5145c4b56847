"""decide, for activities: (activity, command, time) → events, or a refusal that changes nothing.

Whether a worker's lease is live is known to the worker's shard and checked by the caller; here it counts who holds what.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from liveness.domain.activity import FINISHED, Activity, ActivityState, Release
from liveness.domain.errors import (
    ActivityDiffers,
    ActivityHeld,
    ActivityNotAvailable,
    ActivityNotRetryable,
    FencedOff,
)
from liveness.domain.errors import ActivityFinished as ActivityFinishedError
from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCancelRequested,
    ActivityCompleted,
    ActivityEvent,
    ActivityFailed,
    ActivityGivenBack,
    ActivityHandedOn,
    ActivityMadeAvailable,
    ActivityQuarantined,
    ActivityReleased,
    ActivityScheduled,
    ActivityStarted,
    Retry,
)
from liveness.domain.keys import ActivityId
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask

Events = tuple[ActivityEvent, ...]

STARTED = ActivityState.STARTED


class Spec(NamedTuple):
    """What is to be done."""

    type: str
    task_queue: str
    input: bytes
    retry: Retry


class Holder(NamedTuple):
    """The fencing token: who was given which attempt in which lease."""

    worker: str
    epoch: int
    attempt: int


def holder_of(activity: Activity) -> Holder:
    """Who holds it now."""
    return Holder(activity.worker, activity.epoch, activity.attempt)


def name_of(id: ActivityId) -> str:
    """For people."""
    return "/".join(id)


def _of(id: ActivityId) -> dict[str, Any]:
    return {"run_id": id.run_id, "activity_id": id.activity_id}


def schedule(id: ActivityId, activity: Activity | None, spec: Spec, at_ms: int, delay_ms: int) -> Events:
    """Nothing to do for one that is known with the same spec."""
    if activity is None:
        return (_scheduled(id, spec, at_ms, at_ms + delay_ms),)
    known = (activity.type, activity.task_queue, activity.input, activity.retry)
    for name, given, kept in zip(("type", "task queue", "input", "retry policy"), spec, known, strict=True):
        if given != kept:
            raise ActivityDiffers(activity=name_of(id), what=name)
    return ()


def _scheduled(id: ActivityId, spec: Spec, at_ms: int, due_ms: int) -> ActivityScheduled:
    return ActivityScheduled(
        **_of(id), activity_type=spec.type, task_queue=spec.task_queue, input=spec.input, retry=spec.retry,
        at_ms=at_ms, due_ms=due_ms,
    )  # fmt: skip


def start(
    activity: Activity, worker: str, epoch: int, at_ms: int, verify_ms: int, *, floor: int = 1
) -> Events:
    """Hand an available activity to a worker. `floor`: no attempt below it is given out."""
    assert activity.state is ActivityState.AVAILABLE, "only what is available is handed out"
    return (_started(activity.id, worker, epoch, max(activity.attempt, floor), at_ms, verify_ms),)


def _started(
    id: ActivityId, worker: str, epoch: int, attempt: int, at_ms: int, verify_ms: int
) -> ActivityStarted:
    return ActivityStarted(
        **_of(id), worker=worker, epoch=epoch, attempt=attempt, at_ms=at_ms, verify_ms=verify_ms
    )


def claim(
    id: ActivityId,
    activity: Activity | None,
    spec: Spec,
    worker: str,
    epoch: int,
    at_ms: int,
    verify_ms: int,
    *,
    floor: int = 1,
) -> Events:
    """A worker takes what it found by itself. Nothing to do if it holds it in this very lease."""
    if activity is None:
        return (
            _scheduled(id, spec, at_ms, at_ms),
            _started(id, worker, epoch, floor, at_ms, verify_ms),
        )
    if activity.state is ActivityState.AVAILABLE:
        return start(activity, worker, epoch, at_ms, verify_ms, floor=floor)
    if activity.state is STARTED:
        if (activity.worker, activity.epoch) == (worker, epoch):
            return ()
        raise ActivityHeld(activity=name_of(id), holder=activity.worker)
    if activity.state in FINISHED:
        raise ActivityFinishedError(activity=name_of(id), state=activity.state.name)
    raise ActivityNotAvailable(activity=name_of(id), state=activity.state.name)


def complete(activity: Activity, holder: Holder, result: bytes, at_ms: int) -> Events:
    if _repeated(activity, holder, ActivityCompleted):
        return ()
    _check_held(activity, holder)
    return (ActivityCompleted(**_ending(activity, holder, at_ms), result=result),)


def fail(
    activity: Activity,
    holder: Holder,
    message: str,
    at_ms: int,
    *,
    retryable: bool = True,
    after_ms: int | None = None,
) -> Events:
    if _repeated(activity, holder, ActivityAttemptFailed, ActivityFailed):
        return ()
    _check_held(activity, holder)
    retry = activity.retry or Retry()
    ending = _ending(activity, holder, at_ms)
    failures = activity.failures + 1
    if not retryable or _exhausted(retry, failures):
        return (ActivityFailed(**ending, message=message),)
    if after_ms is None:
        after_ms = backoff_ms(retry, failures)
    return (ActivityAttemptFailed(**ending, message=message, due_ms=at_ms + after_ms),)


def give_back(activity: Activity, holder: Holder, reason: str, at_ms: int) -> Events:
    """Without an outcome; it does not count as a failure."""
    if _repeated(activity, holder, ActivityGivenBack):
        return ()
    _check_held(activity, holder)
    return (
        ActivityGivenBack(**_ending(activity, holder, at_ms), reason=reason),
        ActivityMadeAvailable(**_of(activity.id), attempt=activity.attempt + 1, at_ms=at_ms),
    )


def _ending(activity: Activity, holder: Holder, at_ms: int) -> dict[str, Any]:
    return {**_of(activity.id), **holder._asdict(), "at_ms": at_ms}


def _repeated(activity: Activity, holder: Holder, *events: type) -> bool:
    end = activity.end
    return (
        end is not None
        and (end.worker, end.epoch, end.attempt) == holder
        and end.event in {kind.__name__ for kind in events}
    )


def _check_held(activity: Activity, holder: Holder) -> None:
    if activity.state is not STARTED:
        why = f"the activity is {activity.state.name}"
    elif activity.worker != holder.worker:
        why = f"attempt {activity.attempt} is held by worker {activity.worker}"
    elif activity.attempt != holder.attempt:
        why = f"attempt {activity.attempt} is what it holds"
    else:
        return
    raise fenced_off(activity.id, holder, why)


def fenced_off(id: ActivityId, holder: Holder, why: str) -> FencedOff:
    return FencedOff(
        activity=name_of(id), worker=holder.worker, epoch=holder.epoch, attempt=holder.attempt, why=why
    )


def backoff_ms(retry: Retry, failures: int) -> int:
    """Before the attempt after so many failures."""
    try:
        wait_ms = retry.initial_ms * retry.coefficient ** (failures - 1)
    except OverflowError:
        return retry.max_ms
    return int(min(wait_ms, retry.max_ms))


def _exhausted(retry: Retry, failures: int) -> bool:
    return 0 < retry.max_attempts <= failures


def cancel(activity: Activity, reason: str, at_ms: int) -> Events:
    if activity.state is ActivityState.CANCELLED:
        return ()
    if activity.state in FINISHED:
        raise ActivityFinishedError(activity=name_of(activity.id), state=activity.state.name)
    return (ActivityCancelled(**_of(activity.id), reason=reason, at_ms=at_ms),)


def retry_anew(activity: Activity, at_ms: int) -> Events:
    if activity.state not in (ActivityState.QUARANTINED, ActivityState.FAILED):
        raise ActivityNotRetryable(activity=name_of(activity.id), state=activity.state.name)
    return (ActivityMadeAvailable(**_of(activity.id), attempt=activity.attempt + 1, at_ms=at_ms, fresh=True),)


def fall_due(activity: Activity, at_ms: int) -> Events:
    """A delayed or failed activity's time has come, unless it has not."""
    if activity.state is not ActivityState.WAITING or at_ms < activity.due_ms:
        return ()
    return (ActivityMadeAvailable(**_of(activity.id), attempt=activity.attempt, at_ms=at_ms),)


def hand_on(activity: Activity, at_ms: int) -> Events:
    """Another engine has taken it."""
    if activity.state is not ActivityState.RELEASED:
        return ()
    return (ActivityHandedOn(**_of(activity.id), at_ms=at_ms),)


def bring_home(activity: Activity, at_ms: int) -> Events:
    """There is no other engine any more for an activity that was on its way to one."""
    return (ActivityMadeAvailable(**_of(activity.id), attempt=activity.attempt, at_ms=at_ms),)


def is_stale(activity: Activity | None, task: ActivityRescheduleTask) -> bool:
    """Whether the loss that a task reports changes nothing (any more)."""
    if activity is None:
        return False
    if activity.state in FINISHED and activity.state is not ActivityState.HANDED_ON:
        return True
    if activity.state is ActivityState.QUARANTINED:
        return True
    if Release(task.worker, task.epoch, task.activity.attempt) in activity.releases:
        return True
    if activity.state is STARTED:
        held = (activity.worker, activity.attempt) == (task.worker, task.activity.attempt)
        return not held or task.epoch < activity.epoch
    # One that is handed out here has no attempt that is held now, and the one that was is not the next.
    return activity.is_managed and task.activity.attempt < activity.attempt


def reschedule(
    activity: Activity | None,
    task: ActivityRescheduleTask,
    policy: Policy,
    at_ms: int,
    *,
    elsewhere: bool = False,
) -> Events:
    """Take an attempt from a worker that lost it. `elsewhere`: another engine receives it. A delivery seen before
    changes nothing."""
    if is_stale(activity, task):
        return ()
    lost = task.activity
    deaths = failures = 0
    retry = Retry()
    if activity is not None:
        failures, retry = activity.failures, activity.retry or retry
        # In a row, if the attempt that died is the one that was to run next.
        deaths = activity.deaths if lost.attempt == activity.attempt else 0
        if activity.is_managed:
            # Where it belongs is known here; the worker that held it may have named it without saying so.
            lost = lost._replace(task_queue=activity.task_queue, token=activity.token)
    deaths = deaths + 1 if task.died else 0
    failures += task.died
    id = lost.id
    taken = (
        ActivityCancelRequested(
            **_of(id), attempt=lost.attempt, task_queue=lost.task_queue, token=lost.token, worker=task.worker,
            epoch=task.epoch, failures=failures, deaths=deaths, at_ms=at_ms,
        ),
        ActivityReleased(**_of(id)),
    )  # fmt: skip
    deaths_max = policy.max_worker_deaths if retry.max_deaths is None else retry.max_deaths
    if 0 < deaths_max <= deaths:
        return (*taken, ActivityQuarantined(**_of(id), deaths=deaths, at_ms=at_ms))
    if task.died and _exhausted(retry, failures):
        message = f"worker {task.worker} was lost with the last attempt allowed"
        ended = Holder(task.worker, task.epoch, lost.attempt)._asdict()
        return (*taken, ActivityFailed(**_of(id), **ended, at_ms=at_ms, message=message))
    attempt = max(max(activity.attempt if activity else 0, lost.attempt) + 1, policy.token_floor)
    if elsewhere:
        return (taken[0], ActivityReleased(**_of(id), attempt=attempt))
    return (*taken, ActivityMadeAvailable(**_of(id), attempt=attempt, at_ms=at_ms))
