"""Rescheduling a lost activity: it is cancelled and released, then made available, handed on, quarantined or
failed; once per (worker, epoch, attempt)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.activity import (
    FINISHED_ACTIVITY_STATES,
    REMEMBERED_RELEASES_MAX,
    Activity,
    ActivityState,
    ImpossibleActivityEvent,
    ReleasedAttempt,
    activity_timer,
    evolve,
    evolve_all,
)
from liveness.domain.activity_decider import AttemptHolder, is_stale_reschedule, reschedule
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
from tests.unit.domain import strategies
from tests.unit.domain.activity_scenario import ID, POLICY, SPEC, WALL_MS, ActivityScenario, scheduled, task

OF: dict[str, Any] = {"run_id": "run", "activity_id": "charge"}


def rescheduled(*tasks: ActivityRescheduleTask, policy: Policy = POLICY) -> ActivityScenario:
    scenario = ActivityScenario(policy=policy)
    for one in tasks:
        scenario.reschedule(one)
    return scenario


def folded_one_by_one(activity: Activity | None, events: tuple[ActivityEvent, ...]) -> Activity | None:
    for event in events:
        activity = evolve(activity, event, ID.workflow_id, WALL_MS)
    return activity


@given(
    before=st.none()
    | strategies.activities.filter(lambda activity: activity.state is not ActivityState.FAILED),
    lost=st.builds(task, epoch=st.integers(1, 9), attempt=st.integers(1, 9), died=st.booleans()),
    floor=st.integers(1, 20),
    to_other_engine=st.booleans(),
)
def test_the_events_of_a_reschedule_fold_to_the_same_in_one_step_as_one_by_one(
    before: Activity | None, lost: ActivityRescheduleTask, floor: int, to_other_engine: bool
) -> None:
    events = reschedule(
        before, lost, replace(POLICY, token_floor=floor), at_ms=50, to_other_engine=to_other_engine
    )
    after = evolve_all(before, events, ID.workflow_id, WALL_MS)
    assert after == folded_one_by_one(before, events)


# -- activities that workers bind by heartbeat alone


def test_a_lost_activity_is_cancelled_released_and_made_available() -> None:
    assert reschedule(None, task(epoch=7, attempt=3), POLICY, at_ms=50) == (
        ActivityCancelRequested(
            **OF, attempt=3, task_queue="queue", token=b"token", worker="worker-1", epoch=7, failures=1, deaths=1,
            at_ms=50,
        ),
        ActivityReleased(**OF),
        ActivityMadeAvailable(**OF, attempt=4, at_ms=50),
    )  # fmt: skip


def test_a_reschedule_passes_through_cancel_requested_and_released() -> None:
    states = [state.state for state in rescheduled(task()).states if state]
    assert states == [ActivityState.CANCEL_REQUESTED, ActivityState.RELEASED, ActivityState.AVAILABLE]


def test_a_rescheduled_activity_keeps_queue_and_token_and_raises_its_attempt() -> None:
    assert rescheduled(task(attempt=3)).known == Activity(
        id=ID,
        state=ActivityState.AVAILABLE,
        attempt=4,
        task_queue="queue",
        token=b"token",
        releases=(ReleasedAttempt("worker-1", 1, 3),),
        since_ms=1_000,
        since_wall_ms=WALL_MS + 1_000,
        failures=1,
        deaths=1,
    )


def test_a_task_delivered_again_has_no_effect() -> None:
    assert rescheduled(task()).reschedule(task()) == ()


def test_a_task_delivered_again_after_later_ones_has_no_effect() -> None:
    scenario = rescheduled(task(), task("worker-2", attempt=2), policy=Policy(max_worker_deaths=0))
    scenario.reschedule(task(epoch=2, attempt=3))
    for earlier in (task(), task("worker-2", attempt=2)):
        assert scenario.reschedule(earlier) == ()


@pytest.mark.parametrize("other", [task("worker-2"), task(epoch=2), task(attempt=2)])
def test_a_different_worker_epoch_or_attempt_is_a_separate_loss(other: ActivityRescheduleTask) -> None:
    assert len(rescheduled(task()).reschedule(other)) == 3


def test_attempt_numbers_only_rise() -> None:
    assert rescheduled(task(attempt=5), task("worker-2", attempt=1)).known.attempt == 7


def test_an_activity_remembers_a_bounded_number_of_losses() -> None:
    scenario = rescheduled(*(task(epoch=epoch) for epoch in range(1, REMEMBERED_RELEASES_MAX + 3)))
    epochs = [release.epoch for release in scenario.known.releases]
    assert epochs == list(range(3, REMEMBERED_RELEASES_MAX + 3))


def test_only_the_held_attempt_of_a_handed_out_activity_can_be_lost() -> None:
    """After the first hand-out this service numbers the attempts, and every attempt before the held one is
    over."""
    scenario = rescheduled(task(attempt=1))
    scenario.start("worker-2")
    for stale in (task(epoch=9), task("worker-3", attempt=2), task("worker-2", attempt=1)):
        assert scenario.reschedule(stale) == ()
    assert scenario.lose(AttemptHolder("worker-2", 1, 2))
    assert scenario.reschedule(task("worker-9", attempt=2)) == (), "the next attempt is not held yet"


def test_a_late_loss_in_an_earlier_lease_does_not_affect_the_same_workers_current_lease() -> None:
    """The worker bound the attempt by heartbeat, died, returned, and was handed that attempt before the loss
    was processed."""
    scenario = rescheduled(task("worker-9", attempt=1))
    late = task("worker-1", epoch=1, attempt=2)
    scenario.start("worker-1", epoch=2)
    assert scenario.reschedule(late) == ()


# -- activities that this service hands out


def test_the_loss_of_the_holder_makes_the_next_attempt_available() -> None:
    scenario = scheduled()
    scenario.lose(scenario.start("worker-1", epoch=4))
    activity = scenario.known
    assert (activity.state, activity.attempt) == (ActivityState.AVAILABLE, 2)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)
    assert activity.releases == (ReleasedAttempt("worker-1", 4, 1),)
    assert (activity.type, activity.input, activity.retry) == (SPEC.type, SPEC.input, SPEC.retry)


def test_a_reschedule_keeps_the_task_queue_and_token_of_the_schedule() -> None:
    """A worker may bind the activity without a task queue, which would move it to the worker's own queue."""
    scenario = scheduled()
    lost = task(*scenario.start())
    scenario.reschedule(lost._replace(activity=lost.activity._replace(task_queue="mine", token=b"mine")))
    assert (scenario.known.task_queue, scenario.known.token) == ("queue", b"")
    assert scenario.schedule() == (), "the activity still equals the scheduled one"


def test_the_loss_of_an_earlier_attempt_does_not_affect_the_current_holder() -> None:
    scenario = scheduled()
    first = scenario.start("worker-1")
    scenario.give_back(first)
    scenario.start("worker-2")
    before = scenario.known
    assert scenario.lose(first) == ()
    assert is_stale_reschedule(scenario.known, task(*first))
    assert scenario.known == before


def test_a_loss_by_a_worker_that_is_not_the_holder_changes_nothing() -> None:
    scenario = scheduled()
    scenario.start("worker-1")
    assert scenario.reschedule(task("worker-2", attempt=1)) == ()


def test_an_attempt_kept_by_a_new_session_is_lost_with_the_later_lease() -> None:
    scenario = scheduled()
    scenario.start("worker-1", epoch=1)
    assert scenario.reschedule(task("worker-1", epoch=2, attempt=1))
    assert scenario.known.state is ActivityState.AVAILABLE


@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "quarantine"])
def test_a_loss_after_the_end_of_an_activity_changes_nothing(end: str) -> None:
    scenario = scheduled(Retry(max_deaths=1))
    holder = scenario.start()
    if end == "complete":
        scenario.complete(holder)
    elif end == "fail":
        scenario.fail(holder, retryable=False)
    elif end == "cancel":
        scenario.cancel()
    else:
        scenario.lose(holder)
        assert scenario.known.state is ActivityState.QUARANTINED
    for lost in (holder, AttemptHolder("worker-2", 1, 1), AttemptHolder("worker-2", 1, 9)):
        assert scenario.lose(lost) == ()


# -- quarantine


def lose_repeatedly(scenario: ActivityScenario, count: int) -> None:
    for number in range(count):
        scenario.lose(scenario.start(f"worker-{number}"))


def test_three_deaths_in_a_row_quarantine_an_activity() -> None:
    scenario = scheduled()
    lose_repeatedly(scenario, 2)
    assert (scenario.known.state, scenario.known.deaths) == (ActivityState.AVAILABLE, 2)
    holder = scenario.start("worker-3")
    assert scenario.wait(5).lose(holder)[1:] == (
        ActivityReleased(**OF),
        ActivityQuarantined(**OF, deaths=3, at_ms=1_005),
    )
    activity = scenario.known
    assert (activity.state, activity.since_ms) == (ActivityState.QUARANTINED, 1_005)
    assert activity.last_failure == "quarantined: 3 workers in a row died with it"


def test_a_limit_of_one_death_quarantines_at_the_first_death() -> None:
    scenario = scheduled(Retry(max_deaths=1))
    lose_repeatedly(scenario, 1)
    assert scenario.known.last_failure == "quarantined: its worker died with it"


@pytest.mark.parametrize(
    ("retry", "policy", "deaths"),
    [
        (Retry(), Policy(max_worker_deaths=2), 2),
        (Retry(max_deaths=1), Policy(max_worker_deaths=2), 1),
        (Retry(max_deaths=4), Policy(max_worker_deaths=2), 4),
        (Retry(max_deaths=2), Policy(max_worker_deaths=0), 2),
    ],
)
def test_the_death_limit_of_the_activity_overrides_that_of_the_namespace(
    retry: Retry, policy: Policy, deaths: int
) -> None:
    scenario = scheduled(retry, policy)
    lose_repeatedly(scenario, deaths - 1)
    before = scenario.known.state
    lose_repeatedly(scenario, 1)
    assert (before, scenario.known.state) == (ActivityState.AVAILABLE, ActivityState.QUARANTINED)


@pytest.mark.parametrize(
    ("retry", "policy"), [(Retry(max_deaths=0), Policy()), (Retry(), Policy(max_worker_deaths=0))]
)
def test_a_death_limit_of_zero_disables_quarantine(retry: Retry, policy: Policy) -> None:
    scenario = scheduled(retry, policy)
    lose_repeatedly(scenario, 20)
    assert (scenario.known.state, scenario.known.deaths) == (ActivityState.AVAILABLE, 20)


def test_a_failure_resets_the_deaths_in_a_row() -> None:
    scenario = scheduled()
    lose_repeatedly(scenario, 2)
    scenario.fail(scenario.start(), after_ms=0)
    scenario.make_available_if_due()
    lose_repeatedly(scenario, 2)
    assert (scenario.known.state, scenario.known.deaths) == (ActivityState.AVAILABLE, 2)


@pytest.mark.parametrize("how", ["given back", "unbound"])
def test_a_give_back_or_an_unbinding_resets_the_deaths_and_counts_no_failure(how: str) -> None:
    scenario = scheduled(Retry(max_attempts=5))
    lose_repeatedly(scenario, 2)
    holder = scenario.start()
    if how == "given back":
        scenario.give_back(holder)
    else:
        scenario.lose(holder, died=False)
    assert (scenario.known.state, scenario.known.deaths, scenario.known.failures) == (
        ActivityState.AVAILABLE,
        0,
        2,
    )


def test_deaths_of_workers_that_bound_by_heartbeat_count_in_a_row() -> None:
    scenario = rescheduled(task(attempt=1), task("worker-2", attempt=2), task("worker-3", attempt=3))
    assert scenario.known.state is ActivityState.QUARANTINED


def test_deaths_with_the_same_attempt_do_not_count_in_a_row() -> None:
    scenario = rescheduled(task(attempt=1), task("worker-2", attempt=1), task("worker-3", attempt=1))
    assert (scenario.known.state, scenario.known.deaths) == (ActivityState.AVAILABLE, 1)


# -- the last allowed attempt


def test_a_death_with_the_last_allowed_attempt_fails_the_activity() -> None:
    scenario = scheduled(Retry(max_attempts=2))
    scenario.fail(scenario.start(), after_ms=0)
    scenario.make_available_if_due()
    scenario.lose(scenario.start("worker-2"))
    activity = scenario.known
    assert (activity.state, activity.failures) == (ActivityState.FAILED, 2)
    assert activity.last_failure == "worker worker-2 was lost with the last attempt allowed"
    assert (activity.worker, activity.epoch) == ("", 0)


def test_unbinding_the_last_allowed_attempt_does_not_fail_the_activity() -> None:
    scenario = scheduled(Retry(max_attempts=1))
    scenario.lose(scenario.start(), died=False)
    assert scenario.known.state is ActivityState.AVAILABLE


def test_the_lost_holder_of_the_last_attempt_is_fenced_off() -> None:
    scenario = scheduled(Retry(max_attempts=1))
    lost_holder = scenario.start()
    scenario.lose(lost_holder)
    with pytest.raises(FencedOff):
        scenario.fail(lost_holder)


# -- other engines


def test_a_lost_activity_for_another_engine_stays_released() -> None:
    scenario = scheduled()
    events = scenario.lose(scenario.start(), to_other_engine=True)
    assert events[1:] == (ActivityReleased(**OF, attempt=2),)
    assert (scenario.known.state, scenario.known.attempt) == (ActivityState.RELEASED, 2)


def test_a_handed_on_activity_is_finished() -> None:
    scenario = scheduled()
    scenario.lose(scenario.start(), to_other_engine=True)
    assert scenario.wait(5).hand_on() == (ActivityHandedOn(**OF, at_ms=1_005),)
    assert (scenario.known.state, scenario.known.since_ms) == (ActivityState.HANDED_ON, 1_005)
    assert scenario.known.state in FINISHED_ACTIVITY_STATES
    assert scenario.hand_on() == ()


def test_only_a_released_activity_is_handed_on() -> None:
    scenario = scheduled()
    assert scenario.hand_on() == ()
    scenario.start()
    assert scenario.hand_on() == ()


def test_cancelling_the_hand_on_makes_the_next_attempt_available() -> None:
    scenario = scheduled()
    scenario.lose(scenario.start(), to_other_engine=True)
    scenario.cancel_hand_on()
    assert (scenario.known.state, scenario.known.attempt) == (ActivityState.AVAILABLE, 2)
    assert scenario.start("worker-2") == AttemptHolder("worker-2", 1, 2)


def test_a_handed_on_activity_that_is_lost_again_is_released_again() -> None:
    scenario = scheduled()
    scenario.lose(scenario.start(), to_other_engine=True)
    scenario.hand_on()
    assert scenario.reschedule(task("theirs", attempt=1)) == (), (
        "the attempt precedes the one that was handed on"
    )
    assert scenario.reschedule(task("theirs", attempt=2), to_other_engine=True)
    assert (scenario.known.state, scenario.known.attempt, scenario.known.deaths) == (
        ActivityState.RELEASED,
        3,
        2,
    )


def test_quarantine_takes_precedence_over_the_hand_on() -> None:
    scenario = scheduled(Retry(max_deaths=1))
    scenario.lose(scenario.start(), to_other_engine=True)
    assert scenario.known.state is ActivityState.QUARANTINED


# -- timers


def test_the_timer_of_an_activity_follows_from_its_state() -> None:
    key = ActivityKey("orders", *ID)
    scenario = scheduled()
    assert activity_timer(key, scenario.known) is None
    holder = scenario.start("worker-1")
    assert activity_timer(key, scenario.known) == VerifyDispatchTask(key)
    scenario.fail(holder)
    assert activity_timer(key, scenario.known) == ActivityDueTask(key)
    scenario.cancel()
    assert activity_timer(key, scenario.known) is None


# -- impossible events


@pytest.mark.parametrize(
    "event",
    [
        ActivityReleased(**OF),
        ActivityMadeAvailable(**OF, attempt=2),
        ActivityStarted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, verify_ms=0),
        ActivityCompleted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, result=b""),
    ],
)
def test_the_first_event_of_an_activity_is_a_schedule_or_a_loss(event: ActivityEvent) -> None:
    with pytest.raises(ImpossibleActivityEvent, match="about an activity that is not known"):
        evolve(None, event, "workflow", 0)


def test_a_second_schedule_event_is_impossible() -> None:
    scenario = scheduled()
    [event] = scenario.log
    assert isinstance(event, ActivityScheduled)
    with pytest.raises(ImpossibleActivityEvent, match="ActivityScheduled about an activity that exists"):
        evolve(scenario.known, event, "workflow", 0)


def test_a_start_event_is_impossible_unless_the_activity_is_available() -> None:
    scenario = scheduled()
    scenario.start()
    with pytest.raises(ImpossibleActivityEvent, match="ActivityStarted about an activity that is STARTED"):
        evolve(scenario.known, scenario.log[-1], "workflow", 0)


@pytest.mark.parametrize(
    "event",
    [
        ActivityCompleted(**OF, worker="w", epoch=1, attempt=1, at_ms=0, result=b""),
        ActivityAttemptFailed(**OF, worker="w", epoch=1, attempt=1, at_ms=0, message="", due_ms=0),
        ActivityFailed(**OF, worker="w", epoch=1, attempt=1, at_ms=0, message=""),
        ActivityGivenBack(**OF, worker="w", epoch=1, attempt=1, at_ms=0, reason=""),
    ],
)
def test_an_end_event_is_impossible_unless_the_activity_is_started(event: ActivityEvent) -> None:
    with pytest.raises(ImpossibleActivityEvent, match="about an activity that is AVAILABLE"):
        evolve(scheduled().known, event, "workflow", 0)


def test_an_event_that_is_not_about_an_activity_is_refused() -> None:
    with pytest.raises(ImpossibleActivityEvent, match="ShardTaken is not about an activity"):
        evolve(scheduled().known, ShardTaken(epoch=1, owner=""), "workflow", 0)  # type: ignore[arg-type]
