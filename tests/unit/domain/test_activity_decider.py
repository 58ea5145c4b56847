"""The decider of an activity, call by call: which worker may hold it, and which tokens may end it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.activity import Activity, ActivityState, EndedAttempt
from liveness.domain.activity_decider import ActivitySpec, AttemptHolder, backoff_ms, contradicts_binding
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
    ActivityQuarantined,
    ActivityScheduled,
    ActivityStarted,
    Retry,
)
from liveness.domain.worker import BoundActivity
from tests.unit.domain.activity_scenario import (
    ID,
    SPEC,
    VERIFY_AFTER_MS,
    WALL_MS,
    ActivityScenario,
    scheduled,
    task,
)

OF: dict[str, Any] = {"run_id": "run", "activity_id": "charge"}
AVAILABLE, STARTED, WAITING = ActivityState.AVAILABLE, ActivityState.STARTED, ActivityState.WAITING
QUARANTINED = ActivityState.QUARANTINED
COMPLETED, FAILED, CANCELLED = ActivityState.COMPLETED, ActivityState.FAILED, ActivityState.CANCELLED


def ended(holder: AttemptHolder, at_ms: int = 1_000) -> dict[str, Any]:
    return {**OF, **holder._asdict(), "at_ms": at_ms}


def in_state(state: ActivityState) -> ActivityScenario:
    """Hand an activity out and bring it into the state."""
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
        ID, AVAILABLE, 1, "queue", b"", (), "resize", b"input", Retry(max_attempts=3),
        since_ms=1_000, since_wall_ms=WALL_MS + 1_000,
    )  # fmt: skip


def test_an_activity_scheduled_for_later_becomes_available_when_due() -> None:
    scenario = ActivityScenario()
    scenario.schedule(delay_ms=500)
    assert (scenario.known.state, scenario.known.due_ms, scenario.known.attempt) == (WAITING, 1_500, 1)
    assert scenario.wait(499).make_available_if_due() == ()
    assert scenario.wait(1).make_available_if_due() == (ActivityMadeAvailable(**OF, attempt=1, at_ms=1_500),)
    assert (scenario.known.state, scenario.known.due_ms) == (AVAILABLE, 0)


@pytest.mark.parametrize("state", [AVAILABLE, STARTED, WAITING, COMPLETED, FAILED, CANCELLED])
def test_scheduling_an_activity_again_changes_nothing_in_any_state(state: ActivityState) -> None:
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
def test_scheduling_a_different_activity_under_the_same_id_is_refused_and_names_the_difference(
    other: ActivitySpec, what: str
) -> None:
    scenario = scheduled()
    with pytest.raises(ActivityDiffers) as refused:
        scenario.schedule(other)
    assert refused.value.fields == {"activity": "workflow/run/charge", "what": what}


def test_only_a_waiting_activity_becomes_available_by_time() -> None:
    for state in ActivityState:
        if state not in (WAITING, ActivityState.CANCEL_REQUESTED):
            assert in_state(state).wait(10**9).make_available_if_due() == ()


# -- handing out


def test_a_hand_out_records_the_holder_and_the_time_to_verify_it() -> None:
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
def test_only_an_available_activity_is_handed_out(state: ActivityState) -> None:
    with pytest.raises(AssertionError):
        in_state(state).start("worker-2")


def test_a_lost_activity_that_was_bound_by_heartbeat_can_be_handed_out() -> None:
    scenario = ActivityScenario()
    scenario.reschedule(task(attempt=1))
    before = scenario.known.is_managed
    holder = scenario.start("worker-2")
    assert (before, scenario.known.is_managed) == (False, True)
    assert scenario.known.bound() == BoundActivity(*ID, 2, "queue", b"token")
    scenario.complete(holder)
    assert scenario.known.state is COMPLETED


# -- claiming


def test_claiming_an_unknown_activity_schedules_and_starts_it() -> None:
    scenario = ActivityScenario()
    kinds = [type(event) for event in scenario.claim("worker-1", epoch=2)]
    assert kinds == [ActivityScheduled, ActivityStarted]
    activity = scenario.known
    assert (activity.state, activity.worker, activity.epoch, activity.attempt) == (STARTED, "worker-1", 2, 1)
    assert (activity.type, activity.input) == (SPEC.type, SPEC.input)


def test_a_worker_can_claim_an_available_activity() -> None:
    scenario = in_state(AVAILABLE)
    scenario.claim("worker-2")
    assert (scenario.known.state, scenario.known.worker, scenario.known.attempt) == (STARTED, "worker-2", 2)


def test_claiming_again_in_the_same_lease_changes_nothing() -> None:
    scenario = scheduled()
    scenario.claim("worker-1", epoch=2)
    assert scenario.claim("worker-1", epoch=2) == ()


@pytest.mark.parametrize(("worker", "epoch"), [("worker-2", 1), ("worker-1", 2)])
def test_a_claim_is_exclusive(worker: str, epoch: int) -> None:
    """A later lease of the same worker cannot claim it either, until the reschedule of the earlier loss is
    done."""
    scenario = scheduled()
    scenario.claim("worker-1", epoch=1)
    with pytest.raises(ActivityHeld) as refused:
        scenario.claim(worker, epoch)
    assert refused.value.fields == {"activity": "workflow/run/charge", "holder": "worker-1"}


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED, ActivityState.HANDED_ON])
def test_a_finished_activity_cannot_be_claimed(state: ActivityState) -> None:
    with pytest.raises(ActivityFinished) as refused:
        in_state(state).claim("worker-2")
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


@pytest.mark.parametrize("state", [WAITING, ActivityState.QUARANTINED, ActivityState.RELEASED])
def test_an_activity_that_is_neither_available_nor_finished_cannot_be_claimed_now(
    state: ActivityState,
) -> None:
    with pytest.raises(ActivityNotAvailable) as refused:
        in_state(state).claim("worker-2")
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


# -- ends


def test_the_holder_completes_an_activity_with_a_result() -> None:
    scenario = scheduled()
    holder = scenario.start("worker-1", epoch=3)
    assert scenario.wait(5).complete(holder, b"done") == (
        ActivityCompleted(**ended(holder, 1_005), result=b"done"),
    )
    activity = scenario.known
    assert (activity.state, activity.result, activity.since_ms) == (COMPLETED, b"done", 1_005)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)
    assert activity.end == EndedAttempt("worker-1", 3, 1, "ActivityCompleted")


def test_a_failed_attempt_schedules_the_next_after_a_backoff() -> None:
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


def test_the_worker_may_choose_the_delay_of_the_retry() -> None:
    scenario = scheduled()
    scenario.fail(scenario.start(), after_ms=77)
    assert scenario.known.due_ms == 1_077


def test_a_non_retryable_failure_is_final() -> None:
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


def test_a_worker_may_leave_an_activity_to_an_operator() -> None:
    scenario = scheduled(Retry(max_attempts=9))
    holder = scenario.start()
    events = (
        ActivityAttemptFailed(**ended(holder), message="refused", due_ms=1_000),
        ActivityQuarantined(**OF, deaths=0, at_ms=1_000),
    )
    assert scenario.fail(holder, "refused", retryable=False, after_ms=5, quarantine=True) == events
    activity = scenario.known
    assert (activity.state, activity.failures, activity.last_failure) == (QUARANTINED, 1, "refused")
    assert (activity.worker, activity.due_ms) == ("", 0)
    assert scenario.fail(holder, "refused", quarantine=True) == (), "a repeated call changes nothing"
    scenario.wait(100)
    assert scenario.make_available_if_due() == ()
    scenario.retry()
    assert (scenario.known.state, scenario.known.failures) == (AVAILABLE, 0)
    assert scenario.known.attempt > holder.attempt


def test_the_failure_of_the_last_allowed_attempt_is_final() -> None:
    scenario = scheduled(Retry(max_attempts=2))
    scenario.fail(scenario.start(), after_ms=0)
    before = scenario.known.state
    scenario.make_available_if_due()
    scenario.fail(scenario.start(), after_ms=0)
    assert (before, scenario.known.state, scenario.known.failures) == (WAITING, FAILED, 2)


def test_an_activity_given_back_is_available_at_once_and_counts_no_failure() -> None:
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
        (AttemptHolder("worker-1", 1, 2), "it holds attempt 1"),
        (AttemptHolder("worker-1", 1, 0), "it holds attempt 1"),
    ],
)
def test_a_token_other_than_the_holders_is_fenced_off_with_the_cause(
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
def test_the_previous_holder_is_fenced_off_after_its_loss(call: str) -> None:
    scenario = scheduled()
    lost_holder = scenario.start("worker-1")
    scenario.lose(lost_holder)
    with pytest.raises(FencedOff, match="the activity is AVAILABLE"):
        end(scenario, call, lost_holder)
    scenario.start("worker-2")
    with pytest.raises(FencedOff, match="attempt 2 is held by worker worker-2"):
        end(scenario, call, lost_holder)


def test_an_old_token_is_fenced_off_even_if_its_worker_holds_the_next_attempt() -> None:
    scenario = scheduled()
    lost_holder = scenario.start("worker-1", epoch=1)
    scenario.lose(lost_holder)
    scenario.start("worker-1", epoch=2)
    with pytest.raises(FencedOff, match="it holds attempt 2"):
        scenario.complete(lost_holder)


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED, WAITING, ActivityState.QUARANTINED])
def test_an_activity_without_a_holder_cannot_be_given_back(state: ActivityState) -> None:
    scenario = in_state(state)
    with pytest.raises(FencedOff, match=f"the activity is {state.name}"):
        scenario.give_back(AttemptHolder("worker-1", 1, 1))


@pytest.mark.parametrize("retryable", [True, False])
def test_a_repeated_failure_call_writes_no_events(*, retryable: bool) -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.fail(holder, retryable=retryable)
    before = scenario.known
    assert scenario.fail(holder, "other words", retryable=not retryable) == ()
    assert scenario.known == before


def test_repeated_completions_and_give_backs_write_no_events() -> None:
    scenario = scheduled()
    first = scenario.start()
    scenario.give_back(first)
    assert scenario.give_back(first) == ()
    second = scenario.start("worker-2")
    scenario.complete(second, b"once")
    assert scenario.complete(second, b"twice") == ()
    assert scenario.known.result == b"once"


def test_a_different_end_call_with_the_same_token_is_fenced_off() -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.give_back(holder)
    with pytest.raises(FencedOff):
        scenario.complete(holder)
    with pytest.raises(FencedOff):
        scenario.fail(holder)


def test_only_the_last_end_call_can_be_repeated() -> None:
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
def test_an_unfinished_activity_can_be_cancelled(state: ActivityState) -> None:
    scenario = in_state(state).wait(5)
    assert scenario.cancel("not needed") == (ActivityCancelled(**OF, reason="not needed", at_ms=1_005),)
    activity = scenario.known
    assert (activity.state, activity.last_failure, activity.since_ms) == (CANCELLED, "not needed", 1_005)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)


def test_cancelling_again_changes_nothing() -> None:
    assert in_state(CANCELLED).cancel("for another reason") == ()


@pytest.mark.parametrize("state", [COMPLETED, FAILED, ActivityState.HANDED_ON])
def test_a_finished_activity_cannot_be_cancelled(state: ActivityState) -> None:
    with pytest.raises(ActivityFinished) as refused:
        in_state(state).cancel()
    assert refused.value.fields["state"] == state.name


@pytest.mark.parametrize("call", END_CALLS)
def test_the_holder_of_a_cancelled_activity_is_fenced_off_with_that_cause(call: str) -> None:
    scenario = scheduled()
    holder = scenario.start()
    scenario.cancel()
    with pytest.raises(FencedOff, match="the activity is CANCELLED"):
        end(scenario, call, holder)


# -- retry by an operator


@pytest.mark.parametrize("state", [FAILED, ActivityState.QUARANTINED])
def test_an_operator_retries_a_failed_or_quarantined_activity(state: ActivityState) -> None:
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
def test_activities_in_other_states_cannot_be_retried(state: ActivityState) -> None:
    with pytest.raises(ActivityNotRetryable) as refused:
        in_state(state).retry()
    assert refused.value.fields == {"activity": "workflow/run/charge", "state": state.name}


# -- backoff


def test_backoff_grows_up_to_its_maximum() -> None:
    retry = Retry(initial_ms=100, coefficient=2.0, max_ms=1_000)
    assert [backoff_ms(retry, failures) for failures in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_a_backoff_that_overflows_is_the_maximum() -> None:
    assert backoff_ms(Retry(initial_ms=1, coefficient=1_000.0, max_ms=70), 10**6) == 70


@given(
    st.builds(Retry, st.integers(0, 2**40), st.floats(1, 1_000), st.integers(0, 2**40)),
    st.integers(1, 10**6),
)
def test_backoff_is_an_integer_and_never_decreases(retry: Retry, failures: int) -> None:
    wait_ms, next_ms = backoff_ms(retry, failures), backoff_ms(retry, failures + 1)
    assert type(wait_ms) is int
    assert 0 <= wait_ms <= next_ms <= retry.max_ms


# -- bindings that workers declare by heartbeat


@pytest.mark.parametrize(
    "state", [state for state in ActivityState if state is not ActivityState.CANCEL_REQUESTED]
)
def test_an_activity_contradicts_bindings_when_it_is_finished_or_held_by_another(
    state: ActivityState,
) -> None:
    known = in_state(state).known
    worker, attempt = known.worker or "other", known.attempt
    expected = {
        COMPLETED: (True, True, True),
        FAILED: (True, True, True),
        CANCELLED: (True, True, True),
        STARTED: (False, True, True),
    }.get(state, (False, False, False))
    assert (
        contradicts_binding(known, worker, attempt),
        contradicts_binding(known, worker, attempt + 1),
        contradicts_binding(known, "somebody else", attempt),
    ) == expected
