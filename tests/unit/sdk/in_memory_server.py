"""The server's decisions about one worker, in memory, for property tests of the heartbeat state."""

from __future__ import annotations

from google.rpc.status_pb2 import Status

from liveness.domain import decider, worker_control
from liveness.domain.errors import LivenessError
from liveness.domain.events import WorkerEvent
from liveness.domain.fold import evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import BoundActivity, Worker, WorkerState
from liveness.engine.shard import HeartbeatOutcome
from liveness.rpc.status import status_of
from liveness.sdk.values import AttemptKey
from liveness.server import wire
from liveness.v1.worker_pb2 import HeartbeatResult, WorkerHeartbeat

LEASE_MS = 30_000


class InMemoryServer:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy(default_lease_ms=LEASE_MS)
        self.worker: Worker | None = None
        self.now_ms = 0
        self.applied: dict[int, bytes] = {}
        """The message that was applied under each sequence number."""
        self._cancelled: set[AttemptKey] = set()
        """Cancelled attempts of activities that the service hands out itself."""
        self._log = 0
        self._attempts: dict[str, int] = {}

    @property
    def known(self) -> Worker:
        assert self.worker is not None
        return self.worker

    @property
    def bound(self) -> set[AttemptKey]:
        return {_key(activity) for activity in self.known.bindings.values()}

    @property
    def to_cancel(self) -> set[AttemptKey]:
        return {_key(activity) for activity in self.known.lost.values()}

    def beat(self, message: WorkerHeartbeat) -> HeartbeatResult | Status:
        """Apply a heartbeat and return the reply."""
        beat = WorkerHeartbeat.FromString(message.SerializeToString())
        key = WorkerKey("orders", beat.worker_instance_key)
        last = self.worker.sequence if self.worker else 0
        try:
            volatile = wire.pop_counters(beat)
            command = wire.heartbeat(beat, volatile, self.policy, self.worker)
            events = decider.heartbeat(key, self.worker, command, self.now_ms)
        except LivenessError as error:
            return status_of(error)
        self._apply(events)
        if self.known.sequence > last:
            self.applied[self.known.sequence] = message.SerializeToString()
        if self.known.state is WorkerState.ACTIVE:
            for attempt in self.bound & self._cancelled - self.to_cancel:
                self.cancel(attempt)  # as for each declared attempt whose activity is over
        # The client does not use the outcome: epoch and state contain everything it needs.
        outcome = HeartbeatOutcome.RENEWED if events else HeartbeatOutcome.REPEATED
        return wire.heartbeat_result(outcome, self.known, now_ms=self.now_ms, wall_ms=0, jitter=0.3)

    def bind(self, name: str) -> BoundActivity | None:
        """Bind a new attempt as a poll does, if the worker may have one."""
        if self.worker is None or self.worker.state is not WorkerState.ACTIVE:
            return None
        self._attempts[name] = self._attempts.get(name, 0) + 1
        activity = BoundActivity(name, "-", "-", self._attempts[name], "queue")
        if activity.id in self.known.bindings:
            return None
        self._apply(worker_control.bind(activity))
        return activity

    def finish(self, key: AttemptKey) -> bool:
        """End the binding as CompleteActivity does; return False if the worker no longer holds the attempt."""
        for id, activity in self.known.bindings.items():
            if _key(activity) == key:
                self._apply(worker_control.end_binding(self.known, id, key.attempt, taken=False))
                return True
        return False

    def cancel(self, key: AttemptKey) -> None:
        """End the binding as CancelActivity does."""
        for id, activity in self.known.bindings.items():
            if _key(activity) == key:
                if key.workflow_id in self._attempts:
                    self._cancelled.add(key)
                self._apply(worker_control.end_binding(self.known, id, key.attempt, taken=True))

    def expire(self) -> None:
        """Let the lease expire."""
        if self.worker is not None and self.worker.state is WorkerState.ACTIVE:
            self.now_ms = max(self.now_ms, self.worker.deadline_ms)
            self._apply(decider.expire_lease(self.worker, self.policy, self.now_ms))

    def _apply(self, events: tuple[WorkerEvent, ...]) -> None:
        for event in events:
            self._log += 1
            self.worker = evolve(self.worker, event, self._log, self.now_ms)


def _key(activity: BoundActivity) -> AttemptKey:
    return AttemptKey(activity.workflow_id, activity.run_id, activity.activity_id, activity.attempt)
