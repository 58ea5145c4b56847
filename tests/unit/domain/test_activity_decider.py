"""From being scheduled to an end, call by call: who may hold an activity, and whose word about it counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.activity import Activity, ActivityState, EndedAttempt
from liveness.domain.activity_decider import ActivitySpec, AttemptHolder, backoff_ms
from liveness.domain.errors import (
    ActivityDiffers,
    ActivityFinished,
    ActivityHeld,
    ActivityNotAvailable,
    ActivityNotRetryable,
    FencedOff,
)
from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityGivenBack,
    ActivityMadeAvailable,
    ActivityScheduled,
    ActivityStarted,
    Retry,
)
from liveness.domain.worker import BoundActivity
from tests.unit.domain.activity_scenario import ID, SPEC, VERIFY_AFTER_MS, ActivityScenario, scheduled, task

OF: dict[str, Any] = {"run_id": "run", "activity_id": "charge"}
AVAILABLE, STARTED, WAITING = ActivityState.AVAILABLE, ActivityState.STARTED, ActivityState.WAITING
COMPLETED, FAILED, CANCELLED = ActivityState.COMPLETED, ActivityState.FAILED, ActivityState.CANCELLED


def ended(holder: AttemptHolder, at_ms: int = 1_000) -> dict[str, Any]:
    return {**OF, **holder._asdict(), "at_ms": at_ms}


def in_state(state: ActivityState) -> ActivityScenario:
    """An activity that was handed out and came into the state."""
    scenario = scheduled(Retry(max_deaths=1))
    holder = scenario.start()
    if state is AVAILABLE:
        scenario.give_back(holder)
    elif state is WAITING:
        scenario.fail(holder)
    elif state is COMPLETED:
        scenario.complete(holder)
    elif state is FAILED:
        scenario.fail(holder, retryable=False)
    elif state is CANCELLED:
        scenario.cancel()
    elif state is ActivityState.QUARANTINED:
        scenario.lose(holder)
    elif state is not STARTED:
        scenario.lose(holder, died=False, to_other_engine=True)
        if state is ActivityState.HANDED_ON:
            scenario.hand_on()
    assert scenario.known.state is state
    return scenario


# -- scheduling


def test_a_scheduled_activity_is_available_at_once() -> None:
    scenario = ActivityScenario(Retry(max_attempts=3))
    assert scenario.schedule() == (
        ActivityScheduled(
            **OF, activity_type="resize", task_queue="queue", input=b"input", retry=Retry(max_attempts=3),
            at_ms=1_000, due_ms=1_000,
        ),
    )  # fmt: skip
    assert scenario.known == Activity(
        ID, AVAILABLE, 1, "queue", b"", (), "resize", b"input", Retry(max_attempts=3), since_ms=1_000
    )


def test_one_scheduled_for_later_waits_for_its_time() -> None:
    scenario = ActivityScenario()
    scenario.schedule(delay_ms=500)
    assert (scenario.known.state, scenario.known.due_ms, scenario.known.attempt) == (WAITING, 1_500, 1)
    assert scenario.wait(499).make_available_if_due() == ()
    assert scenario.wait(1).make_available_if_due() == (ActivityMadeAvailable(**OF, attempt=1, at_ms=1_500),)
    assert (scenario.known.state, scenario.known.due_ms) == (AVAILABLE, 0)


@pytest.mark.parametrize("state", [AVAILABLE, STARTED, WAITING, COMPLETED, FAILED, CANCELLED])
def test_scheduling_it_again_changes_nothing_whatever_became_of_it(state: ActivityState) -> None:
    scenario = in_state(state)
    assert scenario.schedule(delay_ms=7) == ()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (SPEC._replace(type="other"), "type"),
        (SPEC._replace(task_queue="other"), "task queue"),
        (SPEC._replace(input=b"other"), "input"),
        (SPEC._replace(retry=Retry(max_attempts=9)), "retry policy"),
    ],
)
def test_scheduling_something_else_under_its_id_is_refused_by_what_differs(
    other: ActivitySpec, what: str
) -> None:
    scenario = scheduled()
    with pytest.raises(ActivityDiffers) as refused:
        scenario.schedule(other)
    assert refused.value.fields == {"activity": "workflow/run/charge", "what": what}


def test_only_what_waits_falls_due() -> None:
    for state in ActivityState:
        if state not in (WAITING, ActivityState.CANCEL_REQUESTED):
            assert in_state(state).wait(10**9).make_available_if_due() == ()


# -- handing out


def test_a_hand_out_names_the_holder_and_when_to_look_after_it() -> None:
    scenario = scheduled().wait(5)
    scenario.start("worker-7", epoch=3)
    assert scenario.log[-1] == ActivityStarted(
        **OF, worker="worker-7", epoch=3, attempt=1, at_ms=1_005, verify_ms=1_005 + VERIFY_AFTER_MS
    )
    activity = scenario.known
    assert (activity.state, activity.worker, activity.epoch, activity.attempt) == (STARTED, "worker-7", 3, 1)
    assert (activity.since_ms, activity.due_ms) == (1_005, 1_005 + VERIFY_AFTER_MS)
    assert activity.bound() == BoundActivity(*ID, 1, "queue", b"")


@pytest.mark.parametrize("state", [STARTED, WAITING, COMPLETED, CANCELLED, ActivityState.QUARANTINED])
def test_only_what_is_available_is_handed_out(state: ActivityState) -> None:
    with pytest.raises(AssertionError):
        in_state(state).start("worker-2")


def test_what_a_worker_bound_by_itself_and_lost_can_be_handed_out_like_any_other() -> None:
    scenario = ActivityScenario()
    scenario.reschedule(task(attempt=1))
    before = scenario.known.is_managed
    holder = scenario.start("worker-2")
    assert (before, scenario.known.is_managed) == (False, True)
    assert scenario.known.bound() == BoundActivity(*ID, 2, "queue", b"token")
    scenario.complete(holder)
    assert scenario.known.state is COMPLETED


# -- claiming


def test_a_worker_claims_what_nobody_knew_of() -> None:
    scenario = ActivityScenario()
    kinds = [type(event) for event in scenario.claim("worker-1", epoch=2)]
    assert kinds == [ActivityScheduled, ActivityStarted]
    activity = scenario.known
    assert (activity.state, activity.worker, activity.epoch, activity.attempt) == (STARTED, "worker-1", 2, 1)
    assert (activity.type, activity.input) == (SPEC.type, SPEC.input)


def test_a_worker_claims_what_is_available() -> None:
    scenario = in_state(AVAILABLE)
    scenario.claim("worker-2")
    assert (scenario.known.state, scenario.known.worker, scenario.known.attempt) == (STARTED, "worker-2", 2)


def test_claiming_again_in_the_same_lease_changes_nothing() -> None:
    scenario = scheduled()
    scenario.claim("worker-1", epoch=2)
    assert scenario.claim("worker-1", epoch=2) == ()


@pytest.mark.parametrize(("worker", "epoch"), [("worker-2", 1), ("worker-1", 2)])
def test_a_claim_is_exclusive(worker: str, epoch: int) -> None:
    """Also against the same worker's later lease, until what it lost with the earlier one is moved on."""
    scenario = scheduled()
    scenario.claim("worker-1", epoch=1)
    with pytest.raises(ActivityHeld) as refused:
        scenario.claim(worker, epoch)
    assert refused.value.fields == {"activity": "workflow/run/charge", "holder": "worker-1"}


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED, ActivityState.HANDED_ON])
def test_what_is_finished_cannot_be_claimed(state: ActivityState) -> None:
    with pytest.raises(ActivityFinished) as refused:
        in_state(state).claim("worker-2")
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


@pytest.mark.parametrize("state", [WAITING, ActivityState.QUARANTINED, ActivityState.RELEASED])
def test_what_is_neither_available_nor_finished_cannot_be_claimed_now(state: ActivityState) -> None:
    with pytest.raises(ActivityNotAvailable) as refused:
        in_state(state).claim("worker-2")
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


# -- ends


def test_its_holder_completes_it_with_a_result() -> None:
    scenario = scheduled()
    holder = scenario.start("worker-1", epoch=3)
    assert scenario.wait(5).complete(holder, b"done") == (
        ActivityCompleted(**ended(holder, 1_005), result=b"done"),
    )
    activity = scenario.known
    assert (activity.state, activity.result, activity.since_ms) == (COMPLETED, b"done", 1_005)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)
    assert activity.end == EndedAttempt("worker-1", 3, 1, "ActivityCompleted")


def test_a_failed_attempt_waits_for_its_next() -> None:
    scenario = scheduled(Retry(initial_ms=200, coefficient=3.0))
    holder = scenario.start()
    assert scenario.fail(holder, "no disk") == (
        ActivityAttemptFailed(**ended(holder), message="no disk", due_ms=1_200),
    )
    activity = scenario.known
    assert (activity.state, activity.attempt, activity.due_ms) == (WAITING, 2, 1_200)
    assert (activity.failures, activity.last_failure) == (1, "no disk")
    assert (activity.worker, activity.epoch) == ("", 0)
    scenario.wait(200).make_available_if_due()
    scenario.fail(scenario.start())
    assert scenario.known.due_ms == 1_200 + 600


def test_its_worker_may_say_when_to_try_again() -> None:
    scenario = scheduled()
    scenario.fail(scenario.start(), after_ms=77)
    assert scenario.known.due_ms == 1_077


def test_one_that_is_not_to_be_tried_again_fails_for_good() -> None:
    scenario = scheduled()
    holder = scenario.start()
    assert scenario.fail(holder, "no such file", retryable=False) == (
        ActivityFailed(**ended(holder), message="no such file"),
    )
    assert (scenario.known.state, scenario.known.failures, scenario.known.last_failure) == (
        FAILED,
        1,
        "no such file",
    )


def test_it_fails_for_good_with_the_last_attempt_allowed() -> None:
    scenario = scheduled(Retry(max_attempts=2))
    scenario.fail(scenario.start(), after_ms=0)
    before = scenario.known.state
    scenario.make_available_if_due()
    scenario.fail(scenario.start(), after_ms=0)
    assert (before, scenario.known.state, scenario.known.failures) == (WAITING, FAILED, 2)


def test_what_its_holder_gives_back_is_available_at_once_and_did_not_fail() -> None:
    scenario = scheduled(Retry(max_attempts=1))
    holder = scenario.start()
    assert scenario.give_back(holder, "shutting down") == (
        ActivityGivenBack(**ended(holder), reason="shutting down"),
        ActivityMadeAvailable(**OF, attempt=2, at_ms=1_000),
    )
    activity = scenario.known
    assert (activity.state, activity.attempt, activity.failures, activity.worker) == (AVAILABLE, 2, 0, "")


END_CALLS = ["complete", "fail", "give_back"]


def end(scenario: ActivityScenario, call: str, holder: AttemptHolder) -> tuple[object, ...]:
    ended: tuple[object, ...] = getattr(scenario, call)(holder)
    return ended


@pytest.mark.parametrize("call", END_CALLS)
@pytest.mark.parametrize(
    ("holder", "why"),
    [
        (AttemptHolder("worker-2", 1, 1), "attempt 1 is held by worker worker-1"),
        (AttemptHolder("worker-1", 1, 2), "attempt 1 is what it holds"),
        (AttemptHolder("worker-1", 1, 0), "attempt 1 is what it holds"),
    ],
)
def test_another_token_than_the_holders_is_fenced_off_and_told_why(
    call: str, holder: AttemptHolder, why: str
) -> None:
    scenario = scheduled()
    scenario.start("worker-1")
    before = scenario.known
    with pytest.raises(FencedOff) as refused:
        end(scenario, call, holder)
    assert refused.value.fields == {
        "activity": "workflow/run/charge", "worker": holder.worker, "epoch": 1, "attempt": holder.attempt, "why": why,
    }  # fmt: skip
    assert scenario.known == before


@pytest.mark.parametrize("call", END_CALLS)
def test_a_zombie_is_fenced_off_once_its_attempt_was_taken_from_it(call: str) -> None:
    scenario = scheduled()
    zombie = scenario.start("worker-1")
    scenario.lose(zombie)
    with pytest.raises(FencedOff, match="the activity is AVAILABLE"):
        end(scenario, call, zombie)
    scenario.start("worker-2")
    with pytest.raises(FencedOff, match="attempt 2 is held by worker worker-2"):
        end(scenario, call, zombie)


def test_a_zombie_is_fenced_off_from_the_next_attempt_that_it_holds_itself() -> None:
    scenario = scheduled()
    zombie = scenario.start("worker-1", epoch=1)
    scenario.lose(zombie)
    scenario.start("worker-1", epoch=2)
    with pytest.raises(FencedOff, match="attempt 2 is what it holds"):
        scenario.complete(zombie)


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED, WAITING, ActivityState.QUARANTINED])
def test_nobody_ends_what_nobody_holds(state: ActivityState) -> None:
    scenario = in_state(state)
    with pytest.raises(FencedOff, match=f"the activity is {state.name}"):
        scenario.give_back(AttemptHolder("worker-1", 1, 1))


@pytest.mark.parametrize("retryable", [True, False])
def test_the_same_call_again_is_answered_without_events(*, retryable: bool) -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.fail(holder, retryable=retryable)
    before = scenario.known
    assert scenario.fail(holder, "other words", retryable=not retryable) == ()
    assert scenario.known == before


def test_a_completion_and_a_give_back_can_be_repeated_too() -> None:
    scenario = scheduled()
    first = scenario.start()
    scenario.give_back(first)
    assert scenario.give_back(first) == ()
    second = scenario.start("worker-2")
    scenario.complete(second, b"once")
    assert scenario.complete(second, b"twice") == ()
    assert scenario.known.result == b"once"


def test_a_call_is_repeated_only_as_what_it_was() -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.give_back(holder)
    with pytest.raises(FencedOff):
        scenario.complete(holder)
    with pytest.raises(FencedOff):
        scenario.fail(holder)


def test_only_the_last_end_can_be_repeated() -> None:
    scenario = scheduled()
    first = scenario.start()
    scenario.give_back(first)
    scenario.give_back(scenario.start("worker-2"))
    with pytest.raises(FencedOff):
        scenario.give_back(first)


# -- cancelling


@pytest.mark.parametrize(
    "state", [AVAILABLE, STARTED, WAITING, ActivityState.QUARANTINED, ActivityState.RELEASED]
)
def test_what_is_not_finished_can_be_cancelled(state: ActivityState) -> None:
    scenario = in_state(state).wait(5)
    assert scenario.cancel("not needed") == (ActivityCancelled(**OF, reason="not needed", at_ms=1_005),)
    activity = scenario.known
    assert (activity.state, activity.last_failure, activity.since_ms) == (CANCELLED, "not needed", 1_005)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)


def test_cancelling_again_changes_nothing() -> None:
    assert in_state(CANCELLED).cancel("for another reason") == ()


@pytest.mark.parametrize("state", [COMPLETED, FAILED, ActivityState.HANDED_ON])
def test_what_is_finished_cannot_be_cancelled(state: ActivityState) -> None:
    with pytest.raises(ActivityFinished) as refused:
        in_state(state).cancel()
    assert refused.value.fields["state"] == state.name


@pytest.mark.parametrize("call", END_CALLS)
def test_who_held_it_when_it_was_cancelled_is_told_so(call: str) -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.cancel()
    with pytest.raises(FencedOff, match="the activity is CANCELLED"):
        end(scenario, call, holder)


# -- a fresh start


@pytest.mark.parametrize("state", [FAILED, ActivityState.QUARANTINED])
def test_an_operator_gives_it_a_fresh_start(state: ActivityState) -> None:
    scenario = in_state(state)
    assert scenario.known.failures == 1
    assert scenario.retry() == (ActivityMadeAvailable(**OF, attempt=2, at_ms=1_000, fresh=True),)
    activity = scenario.known
    assert (activity.state, activity.failures, activity.deaths) == (AVAILABLE, 0, 0)
    assert scenario.start("worker-2") == AttemptHolder("worker-2", 1, 2)


@pytest.mark.parametrize(
    "state",
    [AVAILABLE, STARTED, WAITING, COMPLETED, CANCELLED, ActivityState.RELEASED, ActivityState.HANDED_ON],
)
def test_nothing_else_can_be_given_a_fresh_start(state: ActivityState) -> None:
    with pytest.raises(ActivityNotRetryable) as refused:
        in_state(state).retry()
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


# -- backoff


def test_waits_grow_up_to_their_limit() -> None:
    retry = Retry(initial_ms=100, coefficient=2.0, max_ms=1_000)
    assert [backoff_ms(retry, failures) for failures in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_a_wait_too_long_to_be_reckoned_is_the_longest_there_is() -> None:
    assert backoff_ms(Retry(initial_ms=1, coefficient=1_000.0, max_ms=70), 10**6) == 70


@given(
    st.builds(Retry, st.integers(0, 2**40), st.floats(1, 1_000), st.integers(0, 2**40)),
    st.integers(1, 10**6),
)
def test_a_wait_is_a_number_of_milliseconds_and_never_falls(retry: Retry, failures: int) -> None:
    wait_ms, next_ms = backoff_ms(retry, failures), backoff_ms(retry, failures + 1)
    assert type(wait_ms) is int
    assert 0 <= wait_ms <= next_ms <= retry.max_ms
