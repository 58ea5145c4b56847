"""The activity as far as moving it on needs it: bound → cancel requested → released → available.

That an activity is bound is known from its worker's log, so its own story begins when its worker is lost.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from liveness.domain.events import (
    ActivityCancelRequested,
    ActivityEvent,
    ActivityMadeAvailable,
    ActivityReleased,
)
from liveness.domain.keys import ActivityId
from liveness.domain.reactions import ActivityRescheduleTask

REMEMBERED_RELEASES_MAX = 32


class ActivityState(IntEnum):
    CANCEL_REQUESTED = 1
    RELEASED = 2
    AVAILABLE = 3


class Release(NamedTuple):
    """From whom an attempt was taken. Each has at most one effect, however often its task is delivered."""

    worker: str
    epoch: int
    attempt: int


class Activity(NamedTuple):
    id: ActivityId
    state: ActivityState
    attempt: int
    """The attempt that runs next once AVAILABLE."""
    task_queue: str
    token: bytes
    releases: tuple[Release, ...]
    """Newest last."""


def reschedule(activity: Activity | None, task: ActivityRescheduleTask) -> tuple[ActivityEvent, ...]:
    """decide: take an attempt from a worker that lost its lease. A delivery seen before changes nothing."""
    lost = task.activity
    if activity is not None and Release(task.worker, task.epoch, lost.attempt) in activity.releases:
        return ()
    attempt = max(activity.attempt if activity else 0, lost.attempt) + 1
    run_id, activity_id = lost.run_id, lost.activity_id
    return (
        ActivityCancelRequested(
            run_id=run_id,
            activity_id=activity_id,
            attempt=lost.attempt,
            task_queue=lost.task_queue,
            token=lost.token,
            worker=task.worker,
            epoch=task.epoch,
        ),
        ActivityReleased(run_id=run_id, activity_id=activity_id),
        ActivityMadeAvailable(run_id=run_id, activity_id=activity_id, attempt=attempt),
    )


def evolve(activity: Activity | None, event: ActivityEvent, workflow_id: str) -> Activity:
    if isinstance(event, ActivityCancelRequested):
        release = Release(event.worker, event.epoch, event.attempt)
        return Activity(
            id=ActivityId(workflow_id, event.run_id, event.activity_id),
            state=ActivityState.CANCEL_REQUESTED,
            attempt=max(activity.attempt if activity else 0, event.attempt),
            task_queue=event.task_queue,
            token=event.token,
            releases=(*(activity.releases if activity else ()), release)[-REMEMBERED_RELEASES_MAX:],
        )
    assert activity is not None, (
        f"{type(event).__name__} about an activity that was never taken from a worker"
    )
    if isinstance(event, ActivityReleased):
        return activity._replace(state=ActivityState.RELEASED)
    return activity._replace(state=ActivityState.AVAILABLE, attempt=event.attempt)
