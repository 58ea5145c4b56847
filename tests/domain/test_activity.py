"""Moving an activity on: cancel requested, released, available; once per (worker, epoch, attempt)."""

import pytest

from liveness.domain import activity as activities
from liveness.domain.activity import REMEMBERED_RELEASES_MAX, Activity, ActivityState, Release
from liveness.domain.events import (
    ActivityCancelRequested,
    ActivityEvent,
    ActivityMadeAvailable,
    ActivityReleased,
)
from liveness.domain.keys import ActivityId
from liveness.domain.reactions import ActivityRescheduleTask
from tests.domain.story import activity as bound


def task(worker: str = "worker-1", epoch: int = 1, attempt: int = 1) -> ActivityRescheduleTask:
    return ActivityRescheduleTask("orders", bound("charge", attempt, token=b"token"), worker, epoch)


def rescheduled(activity: Activity | None, *tasks: ActivityRescheduleTask) -> Activity:
    for one in tasks:
        for event in activities.reschedule(activity, one):
            activity = activities.evolve(activity, event, "workflow")
    assert activity is not None
    return activity


def test_a_lost_activity_is_cancelled_released_and_made_available() -> None:
    events = activities.reschedule(None, task(epoch=7, attempt=3))
    assert events == (
        ActivityCancelRequested(
            run_id="run",
            activity_id="charge",
            attempt=3,
            task_queue="queue",
            token=b"token",
            worker="worker-1",
            epoch=7,
        ),
        ActivityReleased(run_id="run", activity_id="charge"),
        ActivityMadeAvailable(run_id="run", activity_id="charge", attempt=4),
    )


def test_it_goes_through_each_state_in_turn() -> None:
    activity: Activity | None = None
    states = []
    for event in activities.reschedule(None, task()):
        activity = activities.evolve(activity, event, "workflow")
        states.append(activity.state)
    assert states == [ActivityState.CANCEL_REQUESTED, ActivityState.RELEASED, ActivityState.AVAILABLE]


def test_an_available_activity_knows_what_runs_next_and_where() -> None:
    assert rescheduled(None, task(attempt=3)) == Activity(
        id=ActivityId("workflow", "run", "charge"),
        state=ActivityState.AVAILABLE,
        attempt=4,
        task_queue="queue",
        token=b"token",
        releases=(Release("worker-1", 1, 3),),
    )


def test_a_task_delivered_again_has_no_effect() -> None:
    activity = rescheduled(None, task())
    assert activities.reschedule(activity, task()) == ()


def test_a_task_delivered_again_after_later_ones_has_no_effect() -> None:
    activity = rescheduled(None, task(), task("worker-2", attempt=2), task(epoch=2, attempt=3))
    for earlier in (task(), task("worker-2", attempt=2)):
        assert activities.reschedule(activity, earlier) == ()


@pytest.mark.parametrize("other", [task("worker-2"), task(epoch=2), task(attempt=2)])
def test_another_worker_epoch_or_attempt_is_another_loss(other: ActivityRescheduleTask) -> None:
    activity = rescheduled(None, task())
    assert len(activities.reschedule(activity, other)) == 3


def test_attempts_only_rise() -> None:
    activity = rescheduled(None, task(attempt=5), task("worker-2", attempt=1))
    assert activity.attempt == 7


def test_a_bounded_number_of_losses_is_remembered() -> None:
    tasks = [task(epoch=epoch) for epoch in range(1, REMEMBERED_RELEASES_MAX + 3)]
    activity = rescheduled(None, *tasks)
    assert [release.epoch for release in activity.releases] == list(range(3, REMEMBERED_RELEASES_MAX + 3))


@pytest.mark.parametrize(
    "event",
    [
        ActivityReleased(run_id="run", activity_id="charge"),
        ActivityMadeAvailable(run_id="run", activity_id="charge", attempt=2),
    ],
)
def test_a_story_begins_with_a_loss(event: ActivityEvent) -> None:
    with pytest.raises(AssertionError, match="never taken from a worker"):
        activities.evolve(None, event, "workflow")
