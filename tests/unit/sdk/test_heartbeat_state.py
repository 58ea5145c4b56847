"""The content of a worker's heartbeats, and its handling of the replies."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import BindingRefused, InvalidArgument
from liveness.sdk.heartbeat_state import (
    BACKOFF_MS,
    BINDING_CHANGES_MAX,
    CALL_TIMEOUT_MS_MAX,
    COALESCE_MS,
    FULL_BINDINGS_MAX,
    HeartbeatOutcome,
    HeartbeatState,
)
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.values import ActivityRef, ms_to_duration, ref_to_proto
from liveness.server import wire
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
    WORKER_STATUS_RUNNING,
    HeartbeatResult,
    WorkerHeartbeat,
    WorkerState,
)

PROFILE = WorkerHeartbeat(
    worker_instance_key="worker-1",
    session_id="session-1",
    status=WORKER_STATUS_RUNNING,
    task_queue="queue",
    labels={"zone": "b", "app": "shop", "team": "orders"},
)
LEASE_MS = 30_000
NEXT_MS = 10_000
A, B = ActivityRef("a"), ActivityRef("b")
CODES = {
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "BINDING_QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "WORKER_QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "RATE_LIMITED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "SHARD_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
}


def answer(
    epoch: int = 1,
    *,
    state: WorkerState.ValueType = WORKER_STATE_ACTIVE,
    cancel: tuple[ActivityRef, ...] = (),
    resync: bool = False,
    pause: bool = False,
) -> HeartbeatResult:
    return HeartbeatResult(
        state=state,
        lease_epoch=epoch,
        granted_lease_duration=ms_to_duration(LEASE_MS),
        next_heartbeat_after=ms_to_duration(NEXT_MS),
        cancel_activities=map(ref_to_proto, cancel),
        resync_bindings=resync,
        pause=pause,
    )


def refusal(reason: str, retry_after_ms: int = 0, **metadata: str) -> RpcFailure:
    code = CODES.get(reason, grpc.StatusCode.FAILED_PRECONDITION)
    return RpcFailure(code, reason, "no", metadata, retry_after_ms)


class HeartbeatConversation:
    """A heartbeat state and a scripted server."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.heartbeat_state = HeartbeatState(PROFILE, 0)

    def send(self) -> WorkerHeartbeat:
        """Send the next heartbeat when it is due."""
        assert self.heartbeat_state.due_ms is not None
        self.now_ms = max(self.now_ms, self.heartbeat_state.due_ms)
        return self.heartbeat_state.send(self.now_ms)

    def beat(self, result: HeartbeatResult | None = None) -> tuple[WorkerHeartbeat, HeartbeatOutcome]:
        message = self.send()
        return message, self.heartbeat_state.handle_reply(result or answer(), self.now_ms)

    def refuse(self, failure: RpcFailure) -> HeartbeatOutcome:
        self.send()
        return self.heartbeat_state.handle_failure(failure, self.now_ms, 0.5)

    def hold(self, *refs: ActivityRef) -> None:
        for ref in refs:
            self.heartbeat_state.bind(ref, self.now_ms)
        self.beat()


@pytest.fixture
def conversation() -> HeartbeatConversation:
    """The conversation of a registered worker."""
    conversation = HeartbeatConversation()
    conversation.beat()
    return conversation


def names(refs: object) -> list[str]:
    return [ref.workflow_id for ref in refs]  # type: ignore[attr-defined]


# -- due times


def test_the_first_heartbeat_is_due_at_once() -> None:
    assert HeartbeatState(PROFILE, 5).due_ms == 5


def test_the_next_heartbeat_is_due_when_the_server_says(conversation: HeartbeatConversation) -> None:
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + NEXT_MS


def test_a_bind_makes_a_heartbeat_due_at_once(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    assert conversation.heartbeat_state.due_ms == conversation.now_ms


def test_an_unbind_is_delayed_to_coalesce_with_others(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + COALESCE_MS


def test_no_heartbeat_is_due_while_one_is_in_flight(conversation: HeartbeatConversation) -> None:
    conversation.send()
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    assert conversation.heartbeat_state.due_ms is None


def test_a_heartbeat_may_join_a_batch_a_little_early(conversation: HeartbeatConversation) -> None:
    assert conversation.heartbeat_state.earliest_ms == conversation.now_ms + NEXT_MS - NEXT_MS // 10


def test_a_limited_interval_makes_heartbeats_more_frequent(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.limit_interval(1_500, conversation.now_ms)
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + 1_500
    conversation.beat()
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + 1_500
    conversation.heartbeat_state.limit_interval(None, conversation.now_ms)
    conversation.beat()
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + NEXT_MS


def test_the_call_timeout_is_at_most_a_third_of_the_lease(conversation: HeartbeatConversation) -> None:
    assert HeartbeatState(PROFILE, 0).call_timeout_ms == CALL_TIMEOUT_MS_MAX
    conversation.heartbeat_state.lease_ms = 3_000
    assert conversation.heartbeat_state.call_timeout_ms == 1_000


# -- content


def test_plain_heartbeats_differ_only_in_sequence_and_counters(conversation: HeartbeatConversation) -> None:
    """The server can therefore recognise them without parsing."""
    conversation.heartbeat_state.count(successes=2, errors=1)
    plain = []
    for _ in range(3):
        message, _ = conversation.beat()
        rest = WorkerHeartbeat.FromString(message.SerializeToString())
        rest.sequence = rest.successes = rest.errors = 0
        plain.append(rest.SerializeToString())
    assert len(set(plain)) == 1


def test_sequence_numbers_rise_by_one() -> None:
    conversation = HeartbeatConversation()
    assert [conversation.beat()[0].sequence for _ in range(3)] == [1, 2, 3]


def test_counters_and_the_last_error_are_reported_once(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.count(successes=2, errors=1, last_error="ValueError: no")
    sent, _ = conversation.beat()
    assert (sent.successes, sent.errors, sent.last_error) == (2, 1, "ValueError: no")
    sent, _ = conversation.beat()
    assert (sent.successes, sent.errors, sent.last_error) == (0, 0, "")


def test_a_loop_lag_is_reported_until_it_ends(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.observe_lag(1_000)
    assert conversation.beat()[0].loop_lag == ms_to_duration(1_000)
    conversation.heartbeat_state.observe_lag(0)
    assert not conversation.beat()[0].HasField("loop_lag")


def test_many_binding_changes_are_split_over_heartbeats(conversation: HeartbeatConversation) -> None:
    for number in range(BINDING_CHANGES_MAX + 50):
        conversation.heartbeat_state.bind(ActivityRef(f"a{number}"), conversation.now_ms)
    first, heartbeat_outcome = conversation.beat()
    assert len(first.bound_activities) == len(heartbeat_outcome.held) == BINDING_CHANGES_MAX
    assert conversation.heartbeat_state.due_ms == conversation.now_ms, "callers wait for the rest"
    second, heartbeat_outcome = conversation.beat()
    assert len(second.bound_activities) == len(heartbeat_outcome.held) == 50


def hold_all(conversation: HeartbeatConversation, refs: list[ActivityRef]) -> None:
    for first in range(0, len(refs), BINDING_CHANGES_MAX):
        conversation.hold(*refs[first : first + BINDING_CHANGES_MAX])


def test_many_ends_of_bindings_are_split_over_heartbeats(conversation: HeartbeatConversation) -> None:
    refs = [ActivityRef(f"a{number}") for number in range(BINDING_CHANGES_MAX + 50)]
    hold_all(conversation, refs)
    for ref in refs:
        conversation.heartbeat_state.unbind(ref, conversation.now_ms)
    assert [len(conversation.beat()[0].unbound_activities) for _ in range(3)] == [BINDING_CHANGES_MAX, 50, 0]


def test_a_set_too_large_for_a_heartbeat_is_sent_once_it_is_small_enough(
    conversation: HeartbeatConversation,
) -> None:
    """A server of an older version allowed more. The worker does not beat without a pause meanwhile."""
    refs = [ActivityRef(f"a{number}") for number in range(FULL_BINDINGS_MAX + 1)]
    hold_all(conversation, refs)
    sent, _ = conversation.beat(answer(resync=True))
    sent, _ = conversation.beat(answer(resync=True))
    assert not sent.full_bindings
    due_ms = conversation.heartbeat_state.due_ms
    assert due_ms is not None
    assert due_ms > conversation.now_ms
    conversation.heartbeat_state.unbind(refs[0], conversation.now_ms)
    conversation.beat(answer(resync=True))
    assert conversation.heartbeat_state.due_ms == conversation.now_ms
    sent, _ = conversation.beat()
    assert (sent.full_bindings, len(sent.bound_activities)) == (True, FULL_BINDINGS_MAX)


def test_the_limits_of_a_heartbeat_are_those_of_the_server() -> None:
    assert (BINDING_CHANGES_MAX, FULL_BINDINGS_MAX) == (wire.BINDING_CHANGES_MAX, wire.FULL_BINDINGS_MAX)


def test_changes_during_a_heartbeat_go_into_the_next_one(
    conversation: HeartbeatConversation,
) -> None:
    conversation.hold(A)
    message = conversation.send()
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    assert not message.bound_activities
    conversation.heartbeat_state.handle_reply(answer(), conversation.now_ms)
    after, _ = conversation.beat()
    assert (names(after.bound_activities), names(after.unbound_activities)) == (["b"], ["a"])


def test_an_activity_unbound_before_it_was_sent_is_never_sent(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    message, heartbeat_outcome = conversation.beat()
    assert not message.bound_activities
    assert not message.unbound_activities
    assert not heartbeat_outcome.held


def test_an_activity_that_is_bound_again_is_unbound_first(conversation: HeartbeatConversation) -> None:
    """Both changes in one heartbeat would mean that the activity was bound and finished."""
    conversation.hold(A)
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    message, heartbeat_outcome = conversation.beat()
    assert (names(message.unbound_activities), names(message.bound_activities)) == (["a"], [])
    assert not heartbeat_outcome.held
    message, heartbeat_outcome = conversation.beat()
    assert (names(message.unbound_activities), names(message.bound_activities)) == ([], ["a"])
    assert heartbeat_outcome.held == (A,)


def test_an_activity_bound_again_while_its_first_bind_is_in_flight_is_unbound_first(
    conversation: HeartbeatConversation,
) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    conversation.send()
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    assert not conversation.heartbeat_state.handle_reply(answer(), conversation.now_ms).held, (
        "the reply is for the bind that was withdrawn"
    )
    assert names(conversation.beat()[0].unbound_activities) == ["a"]
    assert conversation.beat()[1].held == (A,)


def test_a_handed_out_activity_is_confirmed_in_the_next_heartbeat(
    conversation: HeartbeatConversation,
) -> None:
    assert conversation.heartbeat_state.accept(A, 1, conversation.now_ms) == (True, ())
    message, heartbeat_outcome = conversation.beat()
    assert names(message.bound_activities) == ["a"]
    assert not heartbeat_outcome.held, "no caller waits for it"


def test_an_activity_that_ended_on_the_server_is_not_unbound(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.accept(A, 1, conversation.now_ms)
    conversation.beat()
    conversation.heartbeat_state.forget(A, conversation.now_ms)
    assert not conversation.beat()[0].unbound_activities


def test_an_activity_that_ended_before_its_confirmation_is_never_sent(
    conversation: HeartbeatConversation,
) -> None:
    conversation.heartbeat_state.accept(A, 1, conversation.now_ms)
    conversation.heartbeat_state.forget(A, conversation.now_ms)
    message, _ = conversation.beat()
    assert not message.bound_activities
    assert not message.unbound_activities


def test_an_activity_that_ended_during_its_confirmation_is_unbound(
    conversation: HeartbeatConversation,
) -> None:
    """The confirmation may be applied after the end and would bind the activity again."""
    conversation.heartbeat_state.accept(A, 1, conversation.now_ms)
    conversation.send()
    conversation.heartbeat_state.mark_reporting(A)
    conversation.heartbeat_state.handle_reply(answer(), conversation.now_ms)
    conversation.heartbeat_state.forget(A, conversation.now_ms)
    assert names(conversation.beat()[0].unbound_activities) == ["a"]


def test_an_activity_whose_outcome_is_being_reported_is_not_confirmed(
    conversation: HeartbeatConversation,
) -> None:
    conversation.heartbeat_state.accept(A, 1, conversation.now_ms)
    conversation.heartbeat_state.mark_reporting(A)
    assert not conversation.beat()[0].bound_activities
    conversation.heartbeat_state.forget(A, conversation.now_ms)
    assert not conversation.beat()[0].unbound_activities


def test_an_activity_whose_outcome_is_being_reported_stays_in_the_full_set(
    conversation: HeartbeatConversation,
) -> None:
    """Leaving it out of the full set would mean that it was dropped without an outcome."""
    conversation.hold(A)
    conversation.heartbeat_state.mark_reporting(A)
    conversation.beat(answer(resync=True))
    assert names(conversation.beat()[0].bound_activities) == ["a"]
    conversation.heartbeat_state.forget(A, conversation.now_ms)
    assert names(conversation.beat()[0].unbound_activities) == ["a"]


def test_an_activity_handed_out_in_an_earlier_lease_is_not_accepted(
    conversation: HeartbeatConversation,
) -> None:
    conversation.beat(answer(2))
    assert conversation.heartbeat_state.accept(A, 1, conversation.now_ms) == (False, ())
    assert names(conversation.beat(answer(2))[0].unbound_activities) == ["a"]


def test_a_later_attempt_ends_the_earlier_one(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    accepted, losses = conversation.heartbeat_state.accept(
        ActivityRef("a", attempt=2), 1, conversation.now_ms
    )
    assert accepted
    assert [loss.ref for loss in losses] == [A]


# -- unknown outcome


def test_a_heartbeat_without_a_reply_is_sent_again_unchanged(
    conversation: HeartbeatConversation,
) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    first = conversation.send().SerializeToString()
    conversation.heartbeat_state.handle_no_reply(conversation.now_ms, 0.5)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    conversation.heartbeat_state.count(successes=1)
    sent_ms = conversation.now_ms
    again = conversation.send()
    assert again.SerializeToString() == first
    heartbeat_outcome = conversation.heartbeat_state.handle_reply(answer(), conversation.now_ms)
    assert heartbeat_outcome.held == (A,)
    assert heartbeat_outcome.sent_ms == sent_ms, "the time of the first sending counts"
    assert names(conversation.beat()[0].bound_activities) == ["b"]


def test_the_backoff_between_retries_grows_up_to_a_second(conversation: HeartbeatConversation) -> None:
    waits = []
    for _ in range(8):
        conversation.send()
        conversation.heartbeat_state.handle_no_reply(conversation.now_ms, 1.0)
        assert conversation.heartbeat_state.due_ms is not None
        waits.append(conversation.heartbeat_state.due_ms - conversation.now_ms)
    assert waits == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]
    conversation.beat()
    conversation.send()
    conversation.heartbeat_state.handle_no_reply(conversation.now_ms, 1.0)
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + BACKOFF_MS[0], (
        "a reply resets the backoff"
    )


@given(st.floats(0, 1))
def test_the_backoff_has_jitter(jitter: float) -> None:
    conversation = HeartbeatConversation()
    conversation.send()
    conversation.heartbeat_state.handle_no_reply(conversation.now_ms, jitter)
    assert conversation.heartbeat_state.due_ms is not None
    assert BACKOFF_MS[0] // 2 <= conversation.heartbeat_state.due_ms <= BACKOFF_MS[0]


def test_the_retry_delay_of_the_server_is_honoured(conversation: HeartbeatConversation) -> None:
    conversation.refuse(refusal("RATE_LIMITED", retry_after_ms=700))
    assert conversation.heartbeat_state.due_ms == conversation.now_ms + 700


def test_an_unavailable_shard_is_retried(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    conversation.refuse(refusal("SHARD_UNAVAILABLE"))
    assert conversation.beat()[1].held == (A,)


# -- replies


def test_a_new_epoch_loses_all_attempts_of_the_old_one(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    _, heartbeat_outcome = conversation.beat(answer(2))
    assert [loss.ref for loss in heartbeat_outcome.lost] == [A]
    assert all(loss.by_lease for loss in heartbeat_outcome.lost)
    assert heartbeat_outcome.held == (B,), "it was bound in the new epoch"


def test_a_lost_attempt_is_unbound_when_its_body_has_ended(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.beat(answer(2, cancel=(A,)))
    assert not conversation.beat(answer(2, cancel=(A,)))[0].unbound_activities
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    assert names(conversation.beat(answer(2))[0].unbound_activities) == ["a"]


def test_the_server_can_cancel_one_attempt(conversation: HeartbeatConversation) -> None:
    conversation.hold(A, B)
    _, heartbeat_outcome = conversation.beat(answer(cancel=(A,)))
    assert [(loss.ref, loss.by_lease) for loss in heartbeat_outcome.lost] == [(A, False)]
    assert list(conversation.heartbeat_state.held) == [B.key]


def test_the_cancellation_of_an_unknown_attempt_unbinds_it_at_once(
    conversation: HeartbeatConversation,
) -> None:
    _, heartbeat_outcome = conversation.beat(answer(cancel=(A,)))
    assert not heartbeat_outcome.lost
    assert names(conversation.beat()[0].unbound_activities) == ["a"]


def test_a_bind_that_is_cancelled_in_the_same_reply_is_lost(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    _, heartbeat_outcome = conversation.beat(answer(cancel=(A,)))
    assert not heartbeat_outcome.held
    assert [loss.ref for loss in heartbeat_outcome.lost] == [A]


def test_a_repeated_heartbeat_can_report_that_the_lease_is_over(conversation: HeartbeatConversation) -> None:
    """The heartbeat was applied, its reply was lost, the lease expired, and then it was sent again."""
    conversation.hold(A)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    _, heartbeat_outcome = conversation.beat(answer(1, state=WORKER_STATE_INACTIVE))
    assert heartbeat_outcome.lease_ended
    assert not heartbeat_outcome.lease_ms
    assert not heartbeat_outcome.held
    assert {loss.ref for loss in heartbeat_outcome.lost} == {A, B}
    assert conversation.heartbeat_state.due_ms == conversation.now_ms, "the next heartbeat starts a new lease"


def test_a_resync_request_is_answered_with_the_full_set_at_once(
    conversation: HeartbeatConversation,
) -> None:
    conversation.hold(A, B)
    conversation.beat(answer(resync=True))
    assert conversation.heartbeat_state.due_ms == conversation.now_ms
    message, _ = conversation.beat()
    assert message.full_bindings
    assert names(message.bound_activities) == ["a", "b"]
    assert not conversation.beat()[0].full_bindings


def test_the_pause_order_is_passed_on(conversation: HeartbeatConversation) -> None:
    assert conversation.beat(answer(pause=True))[1].pause


# -- refusals


def test_a_stale_sequence_number_is_raised_above_the_servers(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    conversation.refuse(refusal("STALE_HEARTBEAT", last_sequence="41"))
    message, heartbeat_outcome = conversation.beat()
    assert message.sequence == 42
    assert heartbeat_outcome.held == (A,), "the content is sent again"


def test_a_bind_above_the_quota_is_rejected(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    conversation.heartbeat_state.count(successes=1)
    heartbeat_outcome = conversation.refuse(refusal("BINDING_QUOTA_EXCEEDED"))
    ((ref, error),) = heartbeat_outcome.rejected_binds
    assert ref == B
    assert isinstance(error, BindingRefused)
    assert not conversation.heartbeat_state.is_tracked(B.key)
    message, _ = conversation.beat()
    assert names(message.bound_activities) == ["a"]
    assert message.full_bindings, "an earlier sending may have been applied"
    assert message.successes == 1


def test_an_invalid_bind_does_not_affect_others(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    heartbeat_outcome = conversation.refuse(refusal("INVALID_FIELD"))
    assert [type(error) for _, error in heartbeat_outcome.rejected_binds] == [InvalidArgument]
    assert heartbeat_outcome.fatal is None
    assert conversation.heartbeat_state.due_ms == conversation.now_ms


@pytest.mark.parametrize("reason", ["SESSION_SUPERSEDED", "WORKER_CLEANED_UP", "INVALID_FIELD"])
def test_some_refusals_are_fatal(conversation: HeartbeatConversation, reason: str) -> None:
    heartbeat_outcome = conversation.refuse(refusal(reason))
    assert heartbeat_outcome.fatal is not None
    assert heartbeat_outcome.fatal.reason == reason


def test_the_worker_quota_is_fatal_only_before_registration(conversation: HeartbeatConversation) -> None:
    assert HeartbeatConversation().refuse(refusal("WORKER_QUOTA_EXCEEDED")).fatal is not None
    assert conversation.refuse(refusal("WORKER_QUOTA_EXCEEDED")).fatal is None


def test_a_restart_under_a_new_key_keeps_pending_binds(conversation: HeartbeatConversation) -> None:
    conversation.heartbeat_state.bind(A, conversation.now_ms)
    conversation.refuse(refusal("WORKER_CLEANED_UP"))
    conversation.heartbeat_state = conversation.heartbeat_state.restart(
        WorkerHeartbeat(worker_instance_key="worker-2"), conversation.now_ms
    )
    message, heartbeat_outcome = conversation.beat()
    assert (message.worker_instance_key, message.sequence) == ("worker-2", 1)
    assert heartbeat_outcome.held == (A,)


def test_a_session_says_that_it_is_new_until_it_is_answered() -> None:
    profile = WorkerHeartbeat(worker_instance_key="worker-1", session_id="s", new_incarnation=True)
    conversation = HeartbeatConversation()
    conversation.heartbeat_state = HeartbeatState(profile, 0)
    assert conversation.send().new_incarnation
    conversation.heartbeat_state.handle_no_reply(conversation.now_ms, 0.5)
    assert conversation.send().new_incarnation, "it may not have arrived"
    conversation.heartbeat_state.handle_failure(refusal("RATE_LIMITED"), conversation.now_ms, 0.5)
    first = conversation.beat(answer(7))[0]
    assert (first.new_incarnation, first.lease_epoch) == (True, 0)
    second = conversation.beat(answer(7))[0]
    assert (second.new_incarnation, second.lease_epoch) == (False, 7)
    assert not conversation.beat()[0].new_incarnation


def test_losing_all_attempts_keeps_pending_binds(conversation: HeartbeatConversation) -> None:
    conversation.hold(A)
    conversation.heartbeat_state.bind(B, conversation.now_ms)
    assert [loss.ref for loss in conversation.heartbeat_state.lose_all("too late")] == [A]
    assert conversation.beat()[1].held == (B,)


def test_the_state_is_flushed_when_all_changes_are_acknowledged(conversation: HeartbeatConversation) -> None:
    def flushed() -> bool:
        return conversation.heartbeat_state.is_flushed

    conversation.hold(A)
    assert flushed()
    conversation.heartbeat_state.unbind(A, conversation.now_ms)
    assert not flushed()
    conversation.send()
    assert not flushed()
    conversation.heartbeat_state.handle_reply(answer(), conversation.now_ms)
    assert flushed()
