"""What a worker says in its heartbeats, and how it reads the answers."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import BindingRefused, InvalidArgument
from liveness.sdk.pulse import (
    BACKOFF_MS,
    BINDING_CHANGES_MAX,
    DEADLINE_MS_MAX,
    SOON_MS,
    Heard,
    Pulse,
)
from liveness.sdk.refusals import Refusal
from liveness.sdk.values import ActivityRef, duration_of_ms, ref_message
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
        granted_lease_duration=duration_of_ms(LEASE_MS),
        next_heartbeat_after=duration_of_ms(NEXT_MS),
        cancel_activities=map(ref_message, cancel),
        resync_bindings=resync,
        pause=pause,
    )


def refusal(reason: str, retry_after_ms: int = 0, **metadata: str) -> Refusal:
    code = CODES.get(reason, grpc.StatusCode.FAILED_PRECONDITION)
    return Refusal(code, reason, "no", metadata, retry_after_ms)


class Talk:
    """A pulse, and what was said to and fro."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.pulse = Pulse(PROFILE, 0)

    def send(self) -> WorkerHeartbeat:
        """The next heartbeat, when it is due."""
        assert self.pulse.due_ms is not None
        self.now_ms = max(self.now_ms, self.pulse.due_ms)
        return self.pulse.send(self.now_ms)

    def beat(self, result: HeartbeatResult | None = None) -> tuple[WorkerHeartbeat, Heard]:
        message = self.send()
        return message, self.pulse.answered(result or answer(), self.now_ms)

    def refuse(self, why: Refusal) -> Heard:
        self.send()
        return self.pulse.refused(why, self.now_ms, 0.5)

    def hold(self, *refs: ActivityRef) -> None:
        for ref in refs:
            self.pulse.bind(ref, self.now_ms)
        self.beat()


@pytest.fixture
def talk() -> Talk:
    """A worker that has been registered."""
    talk = Talk()
    talk.beat()
    return talk


def names(refs: object) -> list[str]:
    return [ref.workflow_id for ref in refs]  # type: ignore[attr-defined]


# -- when


def test_the_first_heartbeat_is_due_at_once() -> None:
    assert Pulse(PROFILE, 5).due_ms == 5


def test_the_next_heartbeat_comes_when_the_server_says(talk: Talk) -> None:
    assert talk.pulse.due_ms == talk.now_ms + NEXT_MS


def test_a_bind_does_not_wait(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    assert talk.pulse.due_ms == talk.now_ms


def test_an_end_waits_a_little_for_company(talk: Talk) -> None:
    talk.hold(A)
    talk.pulse.unbind(A, talk.now_ms)
    assert talk.pulse.due_ms == talk.now_ms + SOON_MS


def test_nothing_is_due_while_one_is_under_way(talk: Talk) -> None:
    talk.send()
    talk.pulse.bind(A, talk.now_ms)
    assert talk.pulse.due_ms is None


def test_in_company_a_heartbeat_may_leave_a_little_early(talk: Talk) -> None:
    assert talk.pulse.early_ms == talk.now_ms + NEXT_MS - NEXT_MS // 10


def test_without_a_stream_heartbeats_come_more_often(talk: Talk) -> None:
    talk.pulse.quicken(1_500, talk.now_ms)
    assert talk.pulse.due_ms == talk.now_ms + 1_500
    talk.beat()
    assert talk.pulse.due_ms == talk.now_ms + 1_500
    talk.pulse.quicken(None, talk.now_ms)
    talk.beat()
    assert talk.pulse.due_ms == talk.now_ms + NEXT_MS


def test_an_answer_is_awaited_for_a_third_of_the_lease_at_most(talk: Talk) -> None:
    assert Pulse(PROFILE, 0).deadline_ms == DEADLINE_MS_MAX
    talk.pulse.lease_ms = 3_000
    assert talk.pulse.deadline_ms == 1_000


# -- what


def test_plain_heartbeats_differ_in_their_numbers_only(talk: Talk) -> None:
    """So the server recognises them without reading them."""
    talk.pulse.count(successes=2, errors=1)
    plain = []
    for _ in range(3):
        message, _ = talk.beat()
        rest = WorkerHeartbeat.FromString(message.SerializeToString())
        rest.sequence = rest.successes = rest.errors = 0
        plain.append(rest.SerializeToString())
    assert len(set(plain)) == 1


def test_numbers_rise_by_one() -> None:
    talk = Talk()
    assert [talk.beat()[0].sequence for _ in range(3)] == [1, 2, 3]


def test_what_was_counted_is_told_once(talk: Talk) -> None:
    talk.pulse.count(successes=2, errors=1, last_error="ValueError: no")
    told, _ = talk.beat()
    assert (told.successes, told.errors, told.last_error) == (2, 1, "ValueError: no")
    told, _ = talk.beat()
    assert (told.successes, told.errors, told.last_error) == (0, 0, "")


def test_a_frozen_loop_is_told_until_it_answers(talk: Talk) -> None:
    talk.pulse.observe_lag(1_000)
    assert talk.beat()[0].loop_lag == duration_of_ms(1_000)
    talk.pulse.observe_lag(0)
    assert not talk.beat()[0].HasField("loop_lag")


def test_many_changes_are_spread_over_heartbeats(talk: Talk) -> None:
    for number in range(BINDING_CHANGES_MAX + 50):
        talk.pulse.bind(ActivityRef(f"a{number}"), talk.now_ms)
    first, heard = talk.beat()
    assert len(first.bound_activities) == len(heard.held) == BINDING_CHANGES_MAX
    assert talk.pulse.due_ms == talk.now_ms, "somebody waits for the rest"
    second, heard = talk.beat()
    assert len(second.bound_activities) == len(heard.held) == 50


def test_changes_that_come_while_one_is_under_way_go_into_the_next(talk: Talk) -> None:
    talk.hold(A)
    message = talk.send()
    talk.pulse.bind(B, talk.now_ms)
    talk.pulse.unbind(A, talk.now_ms)
    assert not message.bound_activities
    talk.pulse.answered(answer(), talk.now_ms)
    after, _ = talk.beat()
    assert (names(after.bound_activities), names(after.unbound_activities)) == (["b"], ["a"])


def test_what_ended_before_it_was_told_is_never_mentioned(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    talk.pulse.unbind(A, talk.now_ms)
    message, heard = talk.beat()
    assert not message.bound_activities
    assert not message.unbound_activities
    assert not heard.held


def test_what_is_bound_again_is_unbound_first(talk: Talk) -> None:
    """Both in one heartbeat would read as taken up and finished."""
    talk.hold(A)
    talk.pulse.unbind(A, talk.now_ms)
    talk.pulse.bind(A, talk.now_ms)
    message, heard = talk.beat()
    assert (names(message.unbound_activities), names(message.bound_activities)) == (["a"], [])
    assert not heard.held
    message, heard = talk.beat()
    assert (names(message.unbound_activities), names(message.bound_activities)) == ([], ["a"])
    assert heard.held == (A,)


def test_what_is_bound_again_while_its_first_bind_is_under_way_is_unbound_first(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    talk.send()
    talk.pulse.unbind(A, talk.now_ms)
    talk.pulse.bind(A, talk.now_ms)
    assert not talk.pulse.answered(answer(), talk.now_ms).held, "that was the one that was given up"
    assert names(talk.beat()[0].unbound_activities) == ["a"]
    assert talk.beat()[1].held == (A,)


def test_what_was_handed_out_is_confirmed(talk: Talk) -> None:
    assert talk.pulse.adopt(A, 1, talk.now_ms) == (True, ())
    message, heard = talk.beat()
    assert names(message.bound_activities) == ["a"]
    assert not heard.held, "nobody waits for it"


def test_what_ended_on_the_server_is_not_unbound(talk: Talk) -> None:
    talk.pulse.adopt(A, 1, talk.now_ms)
    talk.beat()
    talk.pulse.forget(A, talk.now_ms)
    assert not talk.beat()[0].unbound_activities


def test_what_ended_before_it_was_confirmed_is_never_mentioned(talk: Talk) -> None:
    talk.pulse.adopt(A, 1, talk.now_ms)
    talk.pulse.forget(A, talk.now_ms)
    message, _ = talk.beat()
    assert not message.bound_activities
    assert not message.unbound_activities


def test_what_ended_while_being_confirmed_is_unbound(talk: Talk) -> None:
    """The confirmation may be applied after the end, and would bind it anew."""
    talk.pulse.adopt(A, 1, talk.now_ms)
    talk.send()
    talk.pulse.ending(A)
    talk.pulse.answered(answer(), talk.now_ms)
    talk.pulse.forget(A, talk.now_ms)
    assert names(talk.beat()[0].unbound_activities) == ["a"]


def test_what_is_ending_need_not_be_confirmed(talk: Talk) -> None:
    talk.pulse.adopt(A, 1, talk.now_ms)
    talk.pulse.ending(A)
    assert not talk.beat()[0].bound_activities
    talk.pulse.forget(A, talk.now_ms)
    assert not talk.beat()[0].unbound_activities


def test_what_is_ending_is_still_held(talk: Talk) -> None:
    """Leaving it out of the whole set would read as given up without an outcome."""
    talk.hold(A)
    talk.pulse.ending(A)
    talk.beat(answer(resync=True))
    assert names(talk.beat()[0].bound_activities) == ["a"]
    talk.pulse.forget(A, talk.now_ms)
    assert names(talk.beat()[0].unbound_activities) == ["a"]


def test_what_was_handed_out_in_an_earlier_lease_is_not_taken_up(talk: Talk) -> None:
    talk.beat(answer(2))
    assert talk.pulse.adopt(A, 1, talk.now_ms) == (False, ())
    assert names(talk.beat(answer(2))[0].unbound_activities) == ["a"]


def test_a_later_attempt_ends_the_earlier_one(talk: Talk) -> None:
    talk.hold(A)
    welcome, losses = talk.pulse.adopt(ActivityRef("a", attempt=2), 1, talk.now_ms)
    assert welcome
    assert [loss.ref for loss in losses] == [A]


# -- fate unknown


def test_a_heartbeat_whose_fate_is_unknown_is_sent_again_unchanged(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    first = talk.send().SerializeToString()
    talk.pulse.unanswered(talk.now_ms, 0.5)
    talk.pulse.bind(B, talk.now_ms)
    talk.pulse.count(successes=1)
    sent_ms = talk.now_ms
    again = talk.send()
    assert again.SerializeToString() == first
    heard = talk.pulse.answered(answer(), talk.now_ms)
    assert heard.held == (A,)
    assert heard.sent_ms == sent_ms, "the first sending counts"
    assert names(talk.beat()[0].bound_activities) == ["b"]


def test_the_waits_between_sendings_grow_up_to_a_second(talk: Talk) -> None:
    waits = []
    for _ in range(8):
        talk.send()
        talk.pulse.unanswered(talk.now_ms, 1.0)
        assert talk.pulse.due_ms is not None
        waits.append(talk.pulse.due_ms - talk.now_ms)
    assert waits == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]
    talk.beat()
    talk.send()
    talk.pulse.unanswered(talk.now_ms, 1.0)
    assert talk.pulse.due_ms == talk.now_ms + BACKOFF_MS[0], "an answer makes patient again"


@given(st.floats(0, 1))
def test_the_waits_are_spread(jitter: float) -> None:
    talk = Talk()
    talk.send()
    talk.pulse.unanswered(talk.now_ms, jitter)
    assert talk.pulse.due_ms is not None
    assert BACKOFF_MS[0] // 2 <= talk.pulse.due_ms <= BACKOFF_MS[0]


def test_a_server_that_asks_for_time_gets_it(talk: Talk) -> None:
    talk.refuse(refusal("RATE_LIMITED", retry_after_ms=700))
    assert talk.pulse.due_ms == talk.now_ms + 700


def test_a_shard_that_is_away_is_asked_again(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    talk.refuse(refusal("SHARD_UNAVAILABLE"))
    assert talk.beat()[1].held == (A,)


# -- answers


def test_a_new_epoch_takes_everything_held_in_the_old_one(talk: Talk) -> None:
    talk.hold(A)
    talk.pulse.bind(B, talk.now_ms)
    _, heard = talk.beat(answer(2))
    assert [loss.ref for loss in heard.lost] == [A]
    assert all(loss.by_lease for loss in heard.lost)
    assert heard.held == (B,), "it was bound in the new one"


def test_what_was_lost_is_unbound_when_its_body_has_ended(talk: Talk) -> None:
    talk.hold(A)
    talk.beat(answer(2, cancel=(A,)))
    assert not talk.beat(answer(2, cancel=(A,)))[0].unbound_activities
    talk.pulse.unbind(A, talk.now_ms)
    assert names(talk.beat(answer(2))[0].unbound_activities) == ["a"]


def test_the_server_can_take_one_away(talk: Talk) -> None:
    talk.hold(A, B)
    _, heard = talk.beat(answer(cancel=(A,)))
    assert [(loss.ref, loss.by_lease) for loss in heard.lost] == [(A, False)]
    assert list(talk.pulse.held) == [B.key]


def test_what_nobody_here_knows_is_unbound_at_once(talk: Talk) -> None:
    _, heard = talk.beat(answer(cancel=(A,)))
    assert not heard.lost
    assert names(talk.beat()[0].unbound_activities) == ["a"]


def test_a_bind_that_is_cancelled_in_the_same_answer_is_lost(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    _, heard = talk.beat(answer(cancel=(A,)))
    assert not heard.held
    assert [loss.ref for loss in heard.lost] == [A]


def test_a_repeated_answer_can_say_that_the_lease_is_over(talk: Talk) -> None:
    """It was applied, its answer got lost, the lease lapsed, and then it was sent again."""
    talk.hold(A)
    talk.pulse.bind(B, talk.now_ms)
    _, heard = talk.beat(answer(1, state=WORKER_STATE_INACTIVE))
    assert heard.ended
    assert not heard.lease_ms
    assert not heard.held
    assert {loss.ref for loss in heard.lost} == {A, B}
    assert talk.pulse.due_ms == talk.now_ms, "the next begins a new lease"


def test_a_server_that_lacks_bindings_is_told_all_of_them_at_once(talk: Talk) -> None:
    talk.hold(A, B)
    talk.beat(answer(resync=True))
    assert talk.pulse.due_ms == talk.now_ms
    message, _ = talk.beat()
    assert message.full_bindings
    assert names(message.bound_activities) == ["a", "b"]
    assert not talk.beat()[0].full_bindings


def test_orders_are_passed_on(talk: Talk) -> None:
    assert talk.beat(answer(pause=True))[1].pause


# -- refusals


def test_a_stale_number_is_passed(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    talk.refuse(refusal("STALE_HEARTBEAT", last_sequence="41"))
    message, heard = talk.beat()
    assert message.sequence == 42
    assert heard.held == (A,), "what it said is said again"


def test_a_full_worker_may_bind_no_more(talk: Talk) -> None:
    talk.hold(A)
    talk.pulse.bind(B, talk.now_ms)
    talk.pulse.count(successes=1)
    heard = talk.refuse(refusal("BINDING_QUOTA_EXCEEDED"))
    ((ref, error),) = heard.not_bound
    assert ref == B
    assert isinstance(error, BindingRefused)
    assert not talk.pulse.knows(B.key)
    message, _ = talk.beat()
    assert names(message.bound_activities) == ["a"]
    assert message.full_bindings, "an earlier sending may have been applied all the same"
    assert message.successes == 1


def test_an_invalid_bind_harms_nothing_else(talk: Talk) -> None:
    talk.hold(A)
    talk.pulse.bind(B, talk.now_ms)
    heard = talk.refuse(refusal("INVALID_FIELD"))
    assert [type(error) for _, error in heard.not_bound] == [InvalidArgument]
    assert heard.fatal is None
    assert talk.pulse.due_ms == talk.now_ms


@pytest.mark.parametrize("reason", ["SESSION_SUPERSEDED", "WORKER_CLEANED_UP", "INVALID_FIELD"])
def test_some_refusals_are_the_end(talk: Talk, reason: str) -> None:
    heard = talk.refuse(refusal(reason))
    assert heard.fatal is not None
    assert heard.fatal.reason == reason


def test_a_full_namespace_is_the_end_for_a_worker_that_never_was(talk: Talk) -> None:
    assert Talk().refuse(refusal("WORKER_QUOTA_EXCEEDED")).fatal is not None
    assert talk.refuse(refusal("WORKER_QUOTA_EXCEEDED")).fatal is None


def test_under_a_new_key_binds_go_on_waiting(talk: Talk) -> None:
    talk.pulse.bind(A, talk.now_ms)
    talk.refuse(refusal("WORKER_CLEANED_UP"))
    talk.pulse = talk.pulse.start_over(WorkerHeartbeat(worker_instance_key="worker-2"), talk.now_ms)
    message, heard = talk.beat()
    assert (message.worker_instance_key, message.sequence) == ("worker-2", 1)
    assert heard.held == (A,)


def test_giving_up_leaves_those_who_still_wait(talk: Talk) -> None:
    talk.hold(A)
    talk.pulse.bind(B, talk.now_ms)
    assert [loss.ref for loss in talk.pulse.lose_all("too late")] == [A]
    assert talk.beat()[1].held == (B,)


def test_it_is_settled_when_everything_was_told(talk: Talk) -> None:
    def settled() -> bool:
        return talk.pulse.is_settled

    talk.hold(A)
    assert settled()
    talk.pulse.unbind(A, talk.now_ms)
    assert not settled()
    talk.send()
    assert not settled()
    talk.pulse.answered(answer(), talk.now_ms)
    assert settled()
