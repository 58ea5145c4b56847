"""From being scheduled to an end, call by call: who may hold an activity, and whose word about it counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.activity import Activity, ActivityState, End
from liveness.domain.activity_decider import Holder, Spec, backoff_ms
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
from tests.domain.activity_story import ID, SPEC, VERIFY_AFTER_MS, ActivityStory, scheduled, task

OF: dict[str, Any] = {"run_id": "run", "activity_id": "charge"}
AVAILABLE, STARTED, WAITING = ActivityState.AVAILABLE, ActivityState.STARTED, ActivityState.WAITING
COMPLETED, FAILED, CANCELLED = ActivityState.COMPLETED, ActivityState.FAILED, ActivityState.CANCELLED


def ended(holder: Holder, at_ms: int = 1_000) -> dict[str, Any]:
    return {**OF, **holder._asdict(), "at_ms": at_ms}


def in_state(state: ActivityState) -> ActivityStory:
    """An activity that was handed out and came into the state."""
    story = scheduled(Retry(max_deaths=1))
    holder = story.start()
    if state is AVAILABLE:
        story.give_back(holder)
    elif state is WAITING:
        story.fail(holder)
    elif state is COMPLETED:
        story.complete(holder)
    elif state is FAILED:
        story.fail(holder, retryable=False)
    elif state is CANCELLED:
        story.cancel()
    elif state is ActivityState.QUARANTINED:
        story.lose(holder)
    elif state is not STARTED:
        story.lose(holder, died=False, elsewhere=True)
        if state is ActivityState.HANDED_ON:
            story.hand_on()
    assert story.known.state is state
    return story


# -- scheduling


def test_a_scheduled_activity_is_available_at_once() -> None:
    story = ActivityStory(Retry(max_attempts=3))
    assert story.schedule() == (
        ActivityScheduled(
            **OF, activity_type="resize", task_queue="queue", input=b"input", retry=Retry(max_attempts=3),
            at_ms=1_000, due_ms=1_000,
        ),
    )  # fmt: skip
    assert story.known == Activity(
        ID, AVAILABLE, 1, "queue", b"", (), "resize", b"input", Retry(max_attempts=3), since_ms=1_000
    )


def test_one_scheduled_for_later_waits_for_its_time() -> None:
    story = ActivityStory()
    story.schedule(delay_ms=500)
    assert (story.known.state, story.known.due_ms, story.known.attempt) == (WAITING, 1_500, 1)
    assert story.wait(499).fall_due() == ()
    assert story.wait(1).fall_due() == (ActivityMadeAvailable(**OF, attempt=1, at_ms=1_500),)
    assert (story.known.state, story.known.due_ms) == (AVAILABLE, 0)


@pytest.mark.parametrize("state", [AVAILABLE, STARTED, WAITING, COMPLETED, FAILED, CANCELLED])
def test_scheduling_it_again_changes_nothing_whatever_became_of_it(state: ActivityState) -> None:
    story = in_state(state)
    assert story.schedule(delay_ms=7) == ()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (SPEC._replace(type="other"), "type"),
        (SPEC._replace(task_queue="other"), "task queue"),
        (SPEC._replace(input=b"other"), "input"),
        (SPEC._replace(retry=Retry(max_attempts=9)), "retry policy"),
    ],
)
def test_scheduling_something_else_under_its_id_is_refused_by_what_differs(other: Spec, what: str) -> None:
    story = scheduled()
    with pytest.raises(ActivityDiffers) as refused:
        story.schedule(other)
    assert refused.value.fields == {"activity": "workflow/run/charge", "what": what}


def test_only_what_waits_falls_due() -> None:
    for state in ActivityState:
        if state not in (WAITING, ActivityState.CANCEL_REQUESTED):
            assert in_state(state).wait(10**9).fall_due() == ()


# -- handing out


def test_a_hand_out_names_the_holder_and_when_to_look_after_it() -> None:
    story = scheduled().wait(5)
    story.start("worker-7", epoch=3)
    assert story.log[-1] == ActivityStarted(
        **OF, worker="worker-7", epoch=3, attempt=1, at_ms=1_005, verify_ms=1_005 + VERIFY_AFTER_MS
    )
    activity = story.known
    assert (activity.state, activity.worker, activity.epoch, activity.attempt) == (STARTED, "worker-7", 3, 1)
    assert (activity.since_ms, activity.due_ms) == (1_005, 1_005 + VERIFY_AFTER_MS)
    assert activity.bound() == BoundActivity(*ID, 1, "queue", b"")


@pytest.mark.parametrize("state", [STARTED, WAITING, COMPLETED, CANCELLED, ActivityState.QUARANTINED])
def test_only_what_is_available_is_handed_out(state: ActivityState) -> None:
    with pytest.raises(AssertionError):
        in_state(state).start("worker-2")


def test_what_a_worker_bound_by_itself_and_lost_can_be_handed_out_like_any_other() -> None:
    story = ActivityStory()
    story.reschedule(task(attempt=1))
    before = story.known.is_managed
    holder = story.start("worker-2")
    assert (before, story.known.is_managed) == (False, True)
    assert story.known.bound() == BoundActivity(*ID, 2, "queue", b"token")
    story.complete(holder)
    assert story.known.state is COMPLETED


# -- claiming


def test_a_worker_claims_what_nobody_knew_of() -> None:
    story = ActivityStory()
    kinds = [type(event) for event in story.claim("worker-1", epoch=2)]
    assert kinds == [ActivityScheduled, ActivityStarted]
    activity = story.known
    assert (activity.state, activity.worker, activity.epoch, activity.attempt) == (STARTED, "worker-1", 2, 1)
    assert (activity.type, activity.input) == (SPEC.type, SPEC.input)


def test_a_worker_claims_what_is_available() -> None:
    story = in_state(AVAILABLE)
    story.claim("worker-2")
    assert (story.known.state, story.known.worker, story.known.attempt) == (STARTED, "worker-2", 2)


def test_claiming_again_in_the_same_lease_changes_nothing() -> None:
    story = scheduled()
    story.claim("worker-1", epoch=2)
    assert story.claim("worker-1", epoch=2) == ()


@pytest.mark.parametrize(("worker", "epoch"), [("worker-2", 1), ("worker-1", 2)])
def test_a_claim_is_exclusive(worker: str, epoch: int) -> None:
    """Also against the same worker's later lease, until what it lost with the earlier one is moved on."""
    story = scheduled()
    story.claim("worker-1", epoch=1)
    with pytest.raises(ActivityHeld) as refused:
        story.claim(worker, epoch)
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
    story = scheduled()
    holder = story.start("worker-1", epoch=3)
    assert story.wait(5).complete(holder, b"done") == (
        ActivityCompleted(**ended(holder, 1_005), result=b"done"),
    )
    activity = story.known
    assert (activity.state, activity.result, activity.since_ms) == (COMPLETED, b"done", 1_005)
    assert (activity.worker, activity.epoch, activity.due_ms) == ("", 0, 0)
    assert activity.end == End("worker-1", 3, 1, "ActivityCompleted")


def test_a_failed_attempt_waits_for_its_next() -> None:
    story = scheduled(Retry(initial_ms=200, coefficient=3.0))
    holder = story.start()
    assert story.fail(holder, "no disk") == (
        ActivityAttemptFailed(**ended(holder), message="no disk", due_ms=1_200),
    )
    activity = story.known
    assert (activity.state, activity.attempt, activity.due_ms) == (WAITING, 2, 1_200)
    assert (activity.failures, activity.last_failure) == (1, "no disk")
    assert (activity.worker, activity.epoch) == ("", 0)
    story.wait(200).fall_due()
    story.fail(story.start())
    assert story.known.due_ms == 1_200 + 600


def test_its_worker_may_say_when_to_try_again() -> None:
    story = scheduled()
    story.fail(story.start(), after_ms=77)
    assert story.known.due_ms == 1_077


def test_one_that_is_not_to_be_tried_again_fails_for_good() -> None:
    story = scheduled()
    holder = story.start()
    assert story.fail(holder, "no such file", retryable=False) == (
        ActivityFailed(**ended(holder), message="no such file"),
    )
    assert (story.known.state, story.known.failures, story.known.last_failure) == (FAILED, 1, "no such file")


def test_it_fails_for_good_with_the_last_attempt_allowed() -> None:
    story = scheduled(Retry(max_attempts=2))
    story.fail(story.start(), after_ms=0)
    before = story.known.state
    story.fall_due()
    story.fail(story.start(), after_ms=0)
    assert (before, story.known.state, story.known.failures) == (WAITING, FAILED, 2)


def test_what_its_holder_gives_back_is_available_at_once_and_did_not_fail() -> None:
    story = scheduled(Retry(max_attempts=1))
    holder = story.start()
    assert story.give_back(holder, "shutting down") == (
        ActivityGivenBack(**ended(holder), reason="shutting down"),
        ActivityMadeAvailable(**OF, attempt=2, at_ms=1_000),
    )
    activity = story.known
    assert (activity.state, activity.attempt, activity.failures, activity.worker) == (AVAILABLE, 2, 0, "")


END_CALLS = ["complete", "fail", "give_back"]


def end(story: ActivityStory, call: str, holder: Holder) -> tuple[object, ...]:
    ended: tuple[object, ...] = getattr(story, call)(holder)
    return ended


@pytest.mark.parametrize("call", END_CALLS)
@pytest.mark.parametrize(
    ("holder", "why"),
    [
        (Holder("worker-2", 1, 1), "attempt 1 is held by worker worker-1"),
        (Holder("worker-1", 1, 2), "attempt 1 is what it holds"),
        (Holder("worker-1", 1, 0), "attempt 1 is what it holds"),
    ],
)
def test_another_token_than_the_holders_is_fenced_off_and_told_why(
    call: str, holder: Holder, why: str
) -> None:
    story = scheduled()
    story.start("worker-1")
    before = story.known
    with pytest.raises(FencedOff) as refused:
        end(story, call, holder)
    assert refused.value.fields == {
        "activity": "workflow/run/charge", "worker": holder.worker, "epoch": 1, "attempt": holder.attempt, "why": why,
    }  # fmt: skip
    assert story.known == before


@pytest.mark.parametrize("call", END_CALLS)
def test_a_zombie_is_fenced_off_once_its_attempt_was_taken_from_it(call: str) -> None:
    story = scheduled()
    zombie = story.start("worker-1")
    story.lose(zombie)
    with pytest.raises(FencedOff, match="the activity is AVAILABLE"):
        end(story, call, zombie)
    story.start("worker-2")
    with pytest.raises(FencedOff, match="attempt 2 is held by worker worker-2"):
        end(story, call, zombie)


def test_a_zombie_is_fenced_off_from_the_next_attempt_that_it_holds_itself() -> None:
    story = scheduled()
    zombie = story.start("worker-1", epoch=1)
    story.lose(zombie)
    story.start("worker-1", epoch=2)
    with pytest.raises(FencedOff, match="attempt 2 is what it holds"):
        story.complete(zombie)


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED, WAITING, ActivityState.QUARANTINED])
def test_nobody_ends_what_nobody_holds(state: ActivityState) -> None:
    story = in_state(state)
    with pytest.raises(FencedOff, match=f"the activity is {state.name}"):
        story.give_back(Holder("worker-1", 1, 1))


@pytest.mark.parametrize("retryable", [True, False])
def test_the_same_call_again_is_answered_without_events(*, retryable: bool) -> None:
    story = scheduled()
    holder = story.start()
    story.fail(holder, retryable=retryable)
    before = story.known
    assert story.fail(holder, "other words", retryable=not retryable) == ()
    assert story.known == before


def test_a_completion_and_a_give_back_can_be_repeated_too() -> None:
    story = scheduled()
    first = story.start()
    story.give_back(first)
    assert story.give_back(first) == ()
    second = story.start("worker-2")
    story.complete(second, b"once")
    assert story.complete(second, b"twice") == ()
    assert story.known.result == b"once"


def test_a_call_is_repeated_only_as_what_it_was() -> None:
    story = scheduled()
    holder = story.start()
    story.give_back(holder)
    with pytest.raises(FencedOff):
        story.complete(holder)
    with pytest.raises(FencedOff):
        story.fail(holder)


def test_only_the_last_end_can_be_repeated() -> None:
    story = scheduled()
    first = story.start()
    story.give_back(first)
    story.give_back(story.start("worker-2"))
    with pytest.raises(FencedOff):
        story.give_back(first)


# -- cancelling


@pytest.mark.parametrize(
    "state", [AVAILABLE, STARTED, WAITING, ActivityState.QUARANTINED, ActivityState.RELEASED]
)
def test_what_is_not_finished_can_be_cancelled(state: ActivityState) -> None:
    story = in_state(state).wait(5)
    assert story.cancel("not needed") == (ActivityCancelled(**OF, reason="not needed", at_ms=1_005),)
    activity = story.known
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
    story = scheduled()
    holder = story.start()
    story.cancel()
    with pytest.raises(FencedOff, match="the activity is CANCELLED"):
        end(story, call, holder)


# -- a fresh start


@pytest.mark.parametrize("state", [FAILED, ActivityState.QUARANTINED])
def test_an_operator_gives_it_a_fresh_start(state: ActivityState) -> None:
    story = in_state(state)
    assert story.known.failures == 1
    assert story.retry() == (ActivityMadeAvailable(**OF, attempt=2, at_ms=1_000, fresh=True),)
    activity = story.known
    assert (activity.state, activity.failures, activity.deaths) == (AVAILABLE, 0, 0)
    assert story.start("worker-2") == Holder("worker-2", 1, 2)


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
