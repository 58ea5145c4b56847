"""Moving a lost activity on: cancel requested, released, and then available, elsewhere, quarantined or failed; once per
(worker, epoch, attempt)."""

from typing import Any

import pytest

from liveness.domain.activity import (
    FINISHED,
    REMEMBERED_RELEASES_MAX,
    Activity,
    ActivityState,
    ImpossibleActivityEvent,
    Release,
    evolve,
    timer_of,
)
from liveness.domain.activity_decider import Holder, is_stale, reschedule
from liveness.domain.errors import FencedOff
from liveness.domain.events import (
    ActivityAttemptFailed,
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
    ShardTaken,
)
from liveness.domain.keys import ActivityKey
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityDueTask, ActivityRescheduleTask, VerifyDispatchTask
from tests.domain.activity_story import ID, POLICY, SPEC, ActivityStory, scheduled, task

OF: dict[str, Any] = {"run_id": "run", "activity_id": "charge"}


def rescheduled(*tasks: ActivityRescheduleTask, policy: Policy = POLICY) -> ActivityStory:
    story = ActivityStory(policy=policy)
    for one in tasks:
        story.reschedule(one)
    return story


# -- one that a worker bound by its heartbeats alone


def test_a_lost_activity_is_cancelled_released_and_made_available() -> None:
    assert reschedule(None, task(epoch=7, attempt=3), POLICY, at_ms=50) == (
        ActivityCancelRequested(
            **OF, attempt=3, task_queue="queue", token=b"token", worker="worker-1", epoch=7, failures=1, deaths=1,
            at_ms=50,
        ),
        ActivityReleased(**OF),
        ActivityMadeAvailable(**OF, attempt=4, at_ms=50),
    )  # fmt: skip


def test_it_goes_through_each_state_in_turn() -> None:
    states = [state.state for state in rescheduled(task()).states if state]
    assert states == [ActivityState.CANCEL_REQUESTED, ActivityState.RELEASED, ActivityState.AVAILABLE]


def test_an_available_activity_knows_what_runs_next_and_where() -> None:
    assert rescheduled(task(attempt=3)).known == Activity(
        id=ID,
        state=ActivityState.AVAILABLE,
        attempt=4,
        task_queue="queue",
        token=b"token",
        releases=(Release("worker-1", 1, 3),),
        since_ms=1_000,
        failures=1,
        deaths=1,
    )


def test_a_task_delivered_again_has_no_effect() -> None:
    assert rescheduled(task()).reschedule(task()) == ()


def test_a_task_delivered_again_after_later_ones_has_no_effect() -> None:
    story = rescheduled(task(), task("worker-2", attempt=2), policy=Policy(max_worker_deaths=0))
    story.reschedule(task(epoch=2, attempt=3))
    for earlier in (task(), task("worker-2", attempt=2)):
        assert story.reschedule(earlier) == ()


@pytest.mark.parametrize("other", [task("worker-2"), task(epoch=2), task(attempt=2)])
def test_another_worker_epoch_or_attempt_is_another_loss(other: ActivityRescheduleTask) -> None:
    assert len(rescheduled(task()).reschedule(other)) == 3


def test_attempts_only_rise() -> None:
    assert rescheduled(task(attempt=5), task("worker-2", attempt=1)).known.attempt == 7


def test_a_bounded_number_of_losses_is_remembered() -> None:
    story = rescheduled(*(task(epoch=epoch) for epoch in range(1, REMEMBERED_RELEASES_MAX + 3)))
    epochs = [release.epoch for release in story.known.releases]
    assert epochs == list(range(3, REMEMBERED_RELEASES_MAX + 3))


def test_once_it_was_handed_out_here_only_what_is_held_here_can_be_lost() -> None:
    """From then on attempts are numbered here, and an attempt before the held one is over."""
    story = rescheduled(task(attempt=1))
    story.start("worker-2")
    for stale in (task(epoch=9), task("worker-3", attempt=2), task("worker-2", attempt=1)):
        assert story.reschedule(stale) == ()
    assert story.lose(Holder("worker-2", 1, 2))
    assert story.reschedule(task("worker-9", attempt=2)) == (), "it is the next attempt that is not held yet"


def test_a_late_loss_in_an_earlier_lease_takes_nothing_from_the_same_workers_present_one() -> None:
    """It bound the attempt by itself, died, came back, and was handed that very attempt before the loss was heard of."""
    story = rescheduled(task("worker-9", attempt=1))
    late = task("worker-1", epoch=1, attempt=2)
    story.start("worker-1", epoch=2)
    assert story.reschedule(late) == ()


# -- one that is handed out here


def test_the_holders_loss_makes_it_available_with_its_next_attempt() -> None:
    story = scheduled()
    story.lose(story.start("worker-1", epoch=4))
    activity = story.known
    assert (activity.state, activity.attempt) == (ActivityState.AVAILABLE, 2)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)
    assert activity.releases == (Release("worker-1", 4, 1),)
    assert (activity.type, activity.input, activity.retry) == (SPEC.type, SPEC.input, SPEC.retry)


def test_where_it_belongs_is_not_for_the_worker_that_held_it_to_say() -> None:
    """A worker may name it without its task queue, and would take it along to its own."""
    story = scheduled()
    lost = task(*story.start())
    story.reschedule(lost._replace(activity=lost.activity._replace(task_queue="mine", token=b"mine")))
    assert (story.known.task_queue, story.known.token) == ("queue", b"")
    assert story.schedule() == (), "it is still the one that was scheduled"


def test_a_loss_of_an_earlier_attempt_takes_nothing_from_its_present_holder() -> None:
    story = scheduled()
    first = story.start("worker-1")
    story.give_back(first)
    story.start("worker-2")
    before = story.known
    assert story.lose(first) == ()
    assert is_stale(story.known, task(*first))
    assert story.known == before


def test_a_loss_by_another_worker_than_its_holder_is_none() -> None:
    story = scheduled()
    story.start("worker-1")
    assert story.reschedule(task("worker-2", attempt=1)) == ()


def test_what_the_holder_kept_over_a_change_of_session_is_lost_in_its_later_lease() -> None:
    story = scheduled()
    story.start("worker-1", epoch=1)
    assert story.reschedule(task("worker-1", epoch=2, attempt=1))
    assert story.known.state is ActivityState.AVAILABLE


@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "quarantine"])
def test_a_loss_after_the_end_changes_nothing(end: str) -> None:
    story = scheduled(Retry(max_deaths=1))
    holder = story.start()
    if end == "complete":
        story.complete(holder)
    elif end == "fail":
        story.fail(holder, retryable=False)
    elif end == "cancel":
        story.cancel()
    else:
        story.lose(holder)
        assert story.known.state is ActivityState.QUARANTINED
    for lost in (holder, Holder("worker-2", 1, 1), Holder("worker-2", 1, 9)):
        assert story.lose(lost) == ()


# -- the poison rule


def lose_again_and_again(story: ActivityStory, count: int) -> None:
    for number in range(count):
        story.lose(story.start(f"worker-{number}"))


def test_after_three_deaths_in_a_row_it_is_quarantined() -> None:
    story = scheduled()
    lose_again_and_again(story, 2)
    assert (story.known.state, story.known.deaths) == (ActivityState.AVAILABLE, 2)
    holder = story.start("worker-3")
    assert story.wait(5).lose(holder)[1:] == (
        ActivityReleased(**OF),
        ActivityQuarantined(**OF, deaths=3, at_ms=1_005),
    )
    activity = story.known
    assert (activity.state, activity.since_ms) == (ActivityState.QUARANTINED, 1_005)
    assert activity.last_failure == "quarantined: 3 workers in a row died with it"


def test_one_that_may_kill_nobody_is_quarantined_with_its_first_worker() -> None:
    story = scheduled(Retry(max_deaths=1))
    lose_again_and_again(story, 1)
    assert story.known.last_failure == "quarantined: its worker died with it"


@pytest.mark.parametrize(
    ("retry", "policy", "deaths"),
    [
        (Retry(), Policy(max_worker_deaths=2), 2),
        (Retry(max_deaths=1), Policy(max_worker_deaths=2), 1),
        (Retry(max_deaths=4), Policy(max_worker_deaths=2), 4),
        (Retry(max_deaths=2), Policy(max_worker_deaths=0), 2),
    ],
)
def test_the_activitys_own_limit_of_deaths_comes_before_the_namespaces(
    retry: Retry, policy: Policy, deaths: int
) -> None:
    story = scheduled(retry, policy)
    lose_again_and_again(story, deaths - 1)
    before = story.known.state
    lose_again_and_again(story, 1)
    assert (before, story.known.state) == (ActivityState.AVAILABLE, ActivityState.QUARANTINED)


@pytest.mark.parametrize(
    ("retry", "policy"), [(Retry(max_deaths=0), Policy()), (Retry(), Policy(max_worker_deaths=0))]
)
def test_a_limit_of_zero_deaths_means_that_there_is_none(retry: Retry, policy: Policy) -> None:
    story = scheduled(retry, policy)
    lose_again_and_again(story, 20)
    assert (story.known.state, story.known.deaths) == (ActivityState.AVAILABLE, 20)


def test_a_failure_in_between_breaks_the_row() -> None:
    story = scheduled()
    lose_again_and_again(story, 2)
    story.fail(story.start(), after_ms=0)
    story.fall_due()
    lose_again_and_again(story, 2)
    assert (story.known.state, story.known.deaths) == (ActivityState.AVAILABLE, 2)


@pytest.mark.parametrize("how", ["given back", "let go of"])
def test_an_attempt_that_ended_in_order_breaks_the_row_and_is_no_failure(how: str) -> None:
    story = scheduled(Retry(max_attempts=5))
    lose_again_and_again(story, 2)
    holder = story.start()
    if how == "given back":
        story.give_back(holder)
    else:
        story.lose(holder, died=False)
    assert (story.known.state, story.known.deaths, story.known.failures) == (ActivityState.AVAILABLE, 0, 2)


def test_deaths_of_workers_that_bound_it_by_heartbeats_count_in_a_row_too() -> None:
    story = rescheduled(task(attempt=1), task("worker-2", attempt=2), task("worker-3", attempt=3))
    assert story.known.state is ActivityState.QUARANTINED


def test_deaths_with_an_attempt_that_was_not_the_next_are_not_in_a_row() -> None:
    story = rescheduled(task(attempt=1), task("worker-2", attempt=1), task("worker-3", attempt=1))
    assert (story.known.state, story.known.deaths) == (ActivityState.AVAILABLE, 1)


# -- the last attempt allowed


def test_the_worker_that_is_lost_with_the_last_attempt_allowed_fails_it() -> None:
    story = scheduled(Retry(max_attempts=2))
    story.fail(story.start(), after_ms=0)
    story.fall_due()
    story.lose(story.start("worker-2"))
    activity = story.known
    assert (activity.state, activity.failures) == (ActivityState.FAILED, 2)
    assert activity.last_failure == "worker worker-2 was lost with the last attempt allowed"
    assert (activity.worker, activity.epoch) == ("", 0)


def test_a_worker_that_lets_go_of_the_last_attempt_allowed_does_not_fail_it() -> None:
    story = scheduled(Retry(max_attempts=1))
    story.lose(story.start(), died=False)
    assert story.known.state is ActivityState.AVAILABLE


def test_who_was_lost_with_the_last_attempt_cannot_fail_it_afterwards() -> None:
    story = scheduled(Retry(max_attempts=1))
    zombie = story.start()
    story.lose(zombie)
    with pytest.raises(FencedOff):
        story.fail(zombie)


# -- elsewhere


def test_where_another_engine_receives_it_it_waits_released_for_that_engine() -> None:
    story = scheduled()
    events = story.lose(story.start(), elsewhere=True)
    assert events[1:] == (ActivityReleased(**OF, attempt=2),)
    assert (story.known.state, story.known.attempt) == (ActivityState.RELEASED, 2)


def test_once_handed_on_it_is_finished_here() -> None:
    story = scheduled()
    story.lose(story.start(), elsewhere=True)
    assert story.wait(5).hand_on() == (ActivityHandedOn(**OF, at_ms=1_005),)
    assert (story.known.state, story.known.since_ms) == (ActivityState.HANDED_ON, 1_005)
    assert story.known.state in FINISHED
    assert story.hand_on() == ()


def test_what_is_not_on_its_way_is_not_handed_on() -> None:
    story = scheduled()
    assert story.hand_on() == ()
    story.start()
    assert story.hand_on() == ()


def test_without_that_engine_it_comes_home_as_the_attempt_it_was_to_be() -> None:
    story = scheduled()
    story.lose(story.start(), elsewhere=True)
    story.bring_home()
    assert (story.known.state, story.known.attempt) == (ActivityState.AVAILABLE, 2)
    assert story.start("worker-2") == Holder("worker-2", 1, 2)


def test_what_was_handed_on_and_is_lost_again_by_the_other_engines_worker_moves_on() -> None:
    story = scheduled()
    story.lose(story.start(), elsewhere=True)
    story.hand_on()
    assert story.reschedule(task("theirs", attempt=1)) == (), "an attempt before the one that was handed on"
    assert story.reschedule(task("theirs", attempt=2), elsewhere=True)
    assert (story.known.state, story.known.attempt, story.known.deaths) == (ActivityState.RELEASED, 3, 2)


def test_quarantine_comes_before_another_engine() -> None:
    story = scheduled(Retry(max_deaths=1))
    story.lose(story.start(), elsewhere=True)
    assert story.known.state is ActivityState.QUARANTINED


# -- timers


def test_timers_follow_from_the_state() -> None:
    key = ActivityKey("orders", *ID)
    story = scheduled()
    assert timer_of(key, story.known) is None
    holder = story.start("worker-1")
    assert timer_of(key, story.known) == VerifyDispatchTask(key, "worker-1", 1)
    story.fail(holder)
    assert timer_of(key, story.known) == ActivityDueTask(key, 2)
    story.cancel()
    assert timer_of(key, story.known) is None


# -- what a broken log would say


@pytest.mark.parametrize(
    "event",
    [
        ActivityReleased(**OF),
        ActivityMadeAvailable(**OF, attempt=2),
        ActivityStarted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, verify_ms=0),
        ActivityCompleted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, result=b""),
    ],
)
def test_a_story_begins_with_a_schedule_or_a_loss(event: ActivityEvent) -> None:
    with pytest.raises(ImpossibleActivityEvent, match="about an activity that is not known"):
        evolve(None, event, "workflow")


def test_an_activity_is_scheduled_once() -> None:
    story = scheduled()
    [event] = story.log
    assert isinstance(event, ActivityScheduled)
    with pytest.raises(ImpossibleActivityEvent, match="ActivityScheduled about an activity that exists"):
        evolve(story.known, event, "workflow")


def test_only_what_is_available_was_started() -> None:
    story = scheduled()
    story.start()
    with pytest.raises(ImpossibleActivityEvent, match="ActivityStarted about an activity that is STARTED"):
        evolve(story.known, story.log[-1], "workflow")


@pytest.mark.parametrize(
    "event",
    [
        ActivityCompleted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, result=b""),
        ActivityAttemptFailed(**OF, worker="w", epoch=1, attempt=1, at_ms=0, message="", due_ms=0),
        ActivityFailed(**OF, worker="w", epoch=1, attempt=1, at_ms=0, message=""),
        ActivityGivenBack(**OF, worker="w", epoch=1, attempt=1, at_ms=0, reason=""),
    ],
)
def test_only_what_was_started_has_ended(event: ActivityEvent) -> None:
    with pytest.raises(ImpossibleActivityEvent, match="about an activity that is AVAILABLE"):
        evolve(scheduled().known, event, "workflow")


def test_an_event_about_something_else_is_refused() -> None:
    with pytest.raises(ImpossibleActivityEvent, match="ShardTaken is not about an activity"):
        evolve(scheduled().known, ShardTaken(epoch=1, owner=""), "workflow")  # type: ignore[arg-type]
