"""The heartbeat state of the SDK and the server's decisions, over a network that loses and repeats messages.

When the network recovers and every body has ended or continues undisturbed, both sides agree on the bindings
of the worker. At no time does the worker continue an attempt that the server has given away without being
told.
"""

from __future__ import annotations

from google.rpc.status_pb2 import Status
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveness.domain.worker import WorkerState
from liveness.sdk import rpc_failures
from liveness.sdk.heartbeat_state import (
    BINDING_CHANGES_MAX,
    FULL_BINDINGS_MAX,
    HeartbeatOutcome,
    HeartbeatState,
)
from liveness.sdk.values import ActivityRef, AttemptKey, ref_from_proto
from liveness.v1.worker_pb2 import HeartbeatResult, WorkerHeartbeat
from tests.unit.sdk.in_memory_server import InMemoryServer

PROFILE = WorkerHeartbeat(worker_instance_key="worker-1", session_id="session-1", task_queue="queue")
names = st.sampled_from(["a", "b"])
ROUNDS_MAX = 50


class HeartbeatStateAndServer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = InMemoryServer()
        self.now_ms = 0
        self.heartbeat_state = HeartbeatState(PROFILE, 0)
        self.in_flight: WorkerHeartbeat | None = None
        self.sent: dict[int, bytes] = {}
        self.delayed: list[WorkerHeartbeat] = []
        """Requests that the network may still deliver."""
        self.waiting: dict[AttemptKey, ActivityRef] = {}
        self.running: dict[AttemptKey, tuple[ActivityRef, int]] = {}
        """Running bodies, with the epoch of their binding."""
        self.ending: dict[AttemptKey, tuple[bool, ActivityRef]] = {}
        """Bodies whose outcome was reported: the server's answer, not yet delivered."""
        self.stopping: dict[AttemptKey, ActivityRef] = {}
        """Bodies that were told to stop and are still running."""
        self.undeclared: set[AttemptKey] = set()
        """Hand-outs that no heartbeat has declared yet."""

    # -- the program

    @rule(name=names)
    def bind(self, name: str) -> None:
        ref = ActivityRef(f"own-{name}")
        if not self.heartbeat_state.is_tracked(ref.key):
            self.heartbeat_state.bind(ref, self.now_ms)
            self.waiting[ref.key] = ref

    @rule(name=names)
    def poll(self, name: str) -> None:
        activity = self.server.bind(f"handed-{name}")
        if activity is None:
            return
        ref = ActivityRef(activity.workflow_id, attempt=activity.attempt, task_queue="queue")
        epoch = self.server.known.epoch
        accepted, losses = self.heartbeat_state.accept(ref, epoch, self.now_ms)
        self._lost(HeartbeatOutcome(lost=losses))
        if accepted:
            self.running[ref.key] = ref, epoch
            self.undeclared.add(ref.key)

    @precondition(lambda self: self.running.keys() - self.ending)
    @rule(data=st.data())
    def end_body(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running.keys() - self.ending)))
        ref, _ = self.running[key]
        if not ref.workflow_id.startswith("handed"):
            del self.running[key]
            self.heartbeat_state.unbind(ref, self.now_ms)
            return
        self.heartbeat_state.mark_reporting(ref)
        self.ending[key] = self.server.finish(key), ref

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def deliver_end_answer(self, data: st.DataObject) -> None:
        self._ended(data.draw(st.sampled_from(sorted(self.ending))))

    def _ended(self, key: AttemptKey) -> None:
        recorded, ref = self.ending.pop(key)
        self.running.pop(key, None)
        if recorded:
            self.heartbeat_state.forget(ref, self.now_ms)
        else:
            self.heartbeat_state.unbind(ref, self.now_ms)

    @precondition(lambda self: self.stopping)
    @rule(data=st.data())
    def stop_body(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.stopping)))
        self.heartbeat_state.unbind(self.stopping.pop(key), self.now_ms)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.heartbeat_state.unbind(self.waiting.pop(key), self.now_ms)

    @rule()
    def fence_off(self) -> None:
        self._lost(HeartbeatOutcome(lost=self.heartbeat_state.lose_all("not confirmed in time")))

    # -- the server

    @rule()
    def lapse(self) -> None:
        self.server.expire()

    @precondition(lambda self: self.server.worker is not None and self.server.bound)
    @rule(data=st.data())
    def take_away(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.server.bound)))
        self.server.cancel(key)

    # -- the network

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def send(self) -> None:
        due_ms = self.heartbeat_state.due_ms
        assert due_ms is not None, "without a heartbeat in flight the next one must have a due time"
        self.now_ms = max(self.now_ms, due_ms)
        message = self.heartbeat_state.send(self.now_ms)
        self._check_shape(message)
        self.in_flight = message

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def deliver(self) -> None:
        assert self.in_flight is not None
        message, self.in_flight = self.in_flight, None
        self._hear(self.server.beat(message), message)

    @rule()
    def exchange(self) -> None:
        if self.in_flight is None:
            self.send()
        self.deliver()

    @rule(arrives=st.booleans())
    def lose_the_answer_or_all(self, arrives: bool) -> None:
        if self.in_flight is None:
            self.send()
        assert self.in_flight is not None
        message, self.in_flight = self.in_flight, None
        if arrives:
            self.server.beat(message)
        else:
            self.delayed.append(message)
        self.heartbeat_state.handle_no_reply(self.now_ms, 0.5)

    @precondition(lambda self: self.delayed)
    @rule()
    def deliver_late(self) -> None:
        """A request arrives long after its call timed out."""
        self.server.beat(self.delayed.pop())

    # -- invariants

    @invariant()
    def running_bodies_are_held_in_their_epoch(self) -> None:
        assert set(self.running) == set(self.heartbeat_state.held)
        assert all(epoch == self.heartbeat_state.held[key].epoch for key, (_, epoch) in self.running.items())
        assert all(epoch >= self.heartbeat_state.epoch for _, epoch in self.running.values())

    @invariant()
    def no_sequence_number_is_used_for_two_messages(self) -> None:
        assert all(self.sent[number] == applied for number, applied in self.server.applied.items())

    def teardown(self) -> None:
        """Let the network recover and the stopping bodies end; then both sides must agree."""
        for key in list(self.ending):
            self._ended(key)
        for ref in self.stopping.values():
            self.heartbeat_state.unbind(ref, self.now_ms)
        self.stopping = {}
        for _ in range(ROUNDS_MAX):
            if self.in_flight is None:
                self.send()
            self.deliver()
            for ref in self.stopping.values():
                self.heartbeat_state.unbind(ref, self.now_ms)
            self.stopping = {}
            if self.heartbeat_state.is_flushed and not self.server.known.resync and self._agree():
                break
        assert self.heartbeat_state.is_flushed
        assert self._agree()
        assert not self.server.known.resync, "the server got the full set it asked for"
        assert not self.waiting, "every bind was answered"

    def _agree(self) -> bool:
        unconfirmed = {
            AttemptKey(*id, self.server.known.bindings[id].attempt)
            for id, confirmed in self.server.known.standing.handed.items()
            if not confirmed
        }
        # The server itself detects hand-outs that the worker never received.
        held = set(self.heartbeat_state.held)
        return held <= self.server.bound <= held | unconfirmed and not self.server.to_cancel

    def _check_shape(self, message: WorkerHeartbeat) -> None:
        serialised = message.SerializeToString()
        assert self.sent.setdefault(message.sequence, serialised) == serialised
        assert max(self.sent) == message.sequence
        self.undeclared -= {ref_from_proto(ref).key for ref in message.bound_activities}
        bound = {(ref.workflow_id, ref.attempt) for ref in message.bound_activities}
        unbound = {(ref.workflow_id, ref.attempt) for ref in message.unbound_activities}
        assert not bound & unbound
        limit = FULL_BINDINGS_MAX if message.full_bindings else BINDING_CHANGES_MAX
        assert len(bound) + len(unbound) <= limit

    def _hear(self, answer: HeartbeatResult | Status, message: WorkerHeartbeat) -> None:
        if isinstance(answer, Status):
            heartbeat_outcome = self.heartbeat_state.handle_failure(
                rpc_failures.failure_of_status(answer), self.now_ms, 0.5
            )
        else:
            heartbeat_outcome = self.heartbeat_state.handle_reply(answer, self.now_ms)
        assert heartbeat_outcome.fatal is None
        answered = isinstance(answer, HeartbeatResult)
        for ref in heartbeat_outcome.held:
            if self.waiting.pop(ref.key, None) is not None:
                self.running[ref.key] = ref, self.heartbeat_state.epoch
        self._lost(heartbeat_outcome)
        if answered:
            alive = self.server.known.state is WorkerState.ACTIVE
            held = self.running.keys() - self.ending
            # A cancellation is overlooked if the cancelled hand-out crossed a full set, which ends what it does not name,
            # or a heartbeat that declares an earlier attempt, whose own cancellation takes its place. The worker
            # declares the hand-out with its next heartbeat and is told then.
            declared = {ref_from_proto(ref).key[:3] for ref in message.bound_activities}
            held -= {key for key in self.undeclared if message.full_bindings or key[:3] in declared}
            assert held <= (self.server.bound if alive else set())

    def _lost(self, heartbeat_outcome: HeartbeatOutcome) -> None:
        for ref, reason, _ in heartbeat_outcome.lost:
            assert reason
            self.waiting.pop(ref.key, None)
            self.running.pop(ref.key, None)
            if ref.key not in self.ending:
                self.stopping[ref.key] = ref


TestHeartbeatStateAndServer = HeartbeatStateAndServer.TestCase
TestHeartbeatStateAndServer.settings = settings(max_examples=200, stateful_step_count=60)
