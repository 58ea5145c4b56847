"""Drive one worker command by command: decide, evolve and react in memory, as a shard does."""

from __future__ import annotations

from typing import Any

from liveness.domain import decider, worker_control
from liveness.domain.commands import Deactivate, Heartbeat
from liveness.domain.events import WorkerEvent, WorkerForgotten
from liveness.domain.fold import evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask, react
from liveness.domain.worker import NO_PROFILE, BoundActivity, InactiveReason, Worker, WorkerStatus

KEY = WorkerKey("orders", "worker-1")
POLICY = Policy()
WALL_MS = 1_790_000_000_000


def activity(name: str, attempt: int = 1, task_queue: str = "queue", token: bytes = b"") -> BoundActivity:
    return BoundActivity("workflow", "run", name, attempt, task_queue, token)


def heartbeat(**fields: Any) -> Heartbeat:
    """A plain heartbeat of session "a"; `fields` override its values."""
    plain: dict[str, Any] = {
        "session_id": "a",
        "sequence": 1,
        "requested_ms": None,
        "bound": (),
        "unbound": (),
        "full_bindings": False,
        "profile": NO_PROFILE,
        "status": WorkerStatus.UNSPECIFIED,
        "last_error": "",
        "successes": 0,
        "errors": 0,
        "policy": POLICY,
    }
    return Heartbeat(**(plain | fields))


class WorkerScenario:
    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.now_ms = 0
        self.log: list[WorkerEvent] = []
        """Every event so far; an event's sequence is its index plus one."""
        self.states: list[Worker | None] = [None]
        """The worker before the first event and after each."""
        self.wall_times: list[int] = []
        """The wall time of each event. The clock is set back now and then."""
        self.epoch_floor = 1
        """The floor of the shard: as high as the forgotten workers raised it."""
        self.tasks: list[ActivityRescheduleTask] = []

    @property
    def known(self) -> Worker:
        assert self.worker is not None
        return self.worker

    @property
    def held(self) -> set[tuple[str, int]]:
        return {(bound.activity_id, bound.attempt) for bound in self.known.bindings.values()}

    @property
    def handed(self) -> dict[str, bool]:
        """The handed-out activities, and whether the worker has confirmed each."""
        return {id.activity_id: heard for id, heard in self.known.standing.handed.items()}

    @property
    def lost(self) -> set[tuple[str, int]]:
        return {(bound.activity_id, bound.attempt) for bound in self.known.lost.values()}

    @property
    def rescheduled(self) -> list[tuple[str, int, int]]:
        """(activity, attempt, epoch) of each reschedule so far."""
        return [(task.activity.activity_id, task.activity.attempt, task.epoch) for task in self.tasks]

    def wait(self, ms: int) -> WorkerScenario:
        self.now_ms += ms
        return self

    def beat(self, sequence: int | None = None, **fields: Any) -> tuple[WorkerEvent, ...]:
        """Send a heartbeat, with the next sequence number unless one is given."""
        if sequence is None:
            sequence = self.worker.sequence + 1 if self.worker else 1
        return self._apply(
            decider.heartbeat(
                KEY, self.worker, heartbeat(sequence=sequence, **fields), self.now_ms, self.epoch_floor
            )
        )

    def shut_down(self, session_id: str = "", **fields: Any) -> tuple[WorkerEvent, ...]:
        return self._deactivate(InactiveReason.SHUTDOWN, session_id, **fields)

    def force_out(self, session_id: str = "", **fields: Any) -> tuple[WorkerEvent, ...]:
        return self._deactivate(InactiveReason.FORCED, session_id, **fields)

    def _deactivate(
        self, reason: InactiveReason, session_id: str, detail: str = "", policy: Policy = POLICY
    ) -> tuple[WorkerEvent, ...]:
        command = Deactivate(reason=reason, detail=detail, policy=policy, session_id=session_id)
        return self._apply(decider.deactivate(KEY, self.known, command, self.now_ms))

    def pause(self, reason: str = "") -> tuple[WorkerEvent, ...]:
        return self._apply(worker_control.pause(self.known, reason))

    def resume(self) -> tuple[WorkerEvent, ...]:
        return self._apply(worker_control.resume(self.known))

    def drain(self, deadline_ms: int = 0, reason: str = "") -> tuple[WorkerEvent, ...]:
        return self._apply(worker_control.drain(KEY, self.known, reason, deadline_ms))

    def end_drain(self, policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.end_drain(self.known, policy, self.now_ms))

    def attach(self, grace_ms: int, session_id: str = "") -> tuple[WorkerEvent, ...]:
        return self._apply(worker_control.attach(KEY, self.known, session_id, grace_ms))

    def disconnect(self, broken_ms: int, policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.disconnect(self.known, policy, self.now_ms, broken_ms))

    def bind(self, activity: BoundActivity, policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        """Bind the activity as a poll does, if the worker accepts work."""
        worker_control.check_lease_is_live(KEY, self.known)
        worker_control.check_accepts_work(KEY, self.known, policy)
        return self._apply(worker_control.bind(activity))

    def end_binding(self, activity: BoundActivity, *, taken: bool = False) -> tuple[WorkerEvent, ...]:
        return self._apply(worker_control.end_binding(self.known, activity.id, activity.attempt, taken=taken))

    def expire(self, policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.expire_lease(self.known, policy, self.now_ms))

    def clean_up(self, policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.clean_up(self.known, policy, self.now_ms))

    def forget(self) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.forget(self.known, self.now_ms))

    def forget_now(self, reason: str = "", policy: Policy = POLICY) -> tuple[WorkerEvent, ...]:
        return self._apply(decider.forget_now(KEY, self.known, policy, reason, self.now_ms))

    def go_silent(self) -> WorkerScenario:
        """Let the lease expire."""
        self.now_ms = self.known.deadline_ms
        assert self.expire()
        return self

    def be_cleaned_up(self, policy: Policy = POLICY) -> WorkerScenario:
        self.now_ms = self.known.deadline_ms
        assert self.clean_up(policy)
        return self

    def _apply(self, events: tuple[WorkerEvent, ...]) -> tuple[WorkerEvent, ...]:
        for event in events:
            if (batch := react(KEY, self.worker, event)) is not None:
                self.tasks += batch.tasks()
            self.log.append(event)
            self.wall_times.append(WALL_MS + self.now_ms - len(self.log) % 3 * 1_000)
            self.worker = evolve(self.worker, event, len(self.log), self.wall_times[-1])
            self.states.append(self.worker)
            if isinstance(event, WorkerForgotten):
                self.epoch_floor = max(self.epoch_floor, event.epoch_floor)
        return events


def registered(**fields: Any) -> WorkerScenario:
    """A worker that has sent its first heartbeat."""
    scenario = WorkerScenario()
    scenario.beat(**fields)
    return scenario
