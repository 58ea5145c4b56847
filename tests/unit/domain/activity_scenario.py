"""Drive one activity call by call: decide and evolve in memory, as a shard does."""

from __future__ import annotations

from typing import Any

from liveness.domain import activity_decider as decide
from liveness.domain.activity import Activity, evolve, limit_ends
from liveness.domain.activity_decider import ActivitySpec, AttemptHolder, HeartbeatDetails
from liveness.domain.events import NO_LIMITS, ActivityEvent, Retry, TimeLimits
from liveness.domain.keys import ActivityId
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.worker import BoundActivity

ID = ActivityId("workflow", "run", "charge")
POLICY = Policy()
WALL_MS = 1_790_000_000_000
SPEC = ActivitySpec("resize", "queue", b"input", Retry())
VERIFY_AFTER_MS = 10
"""The delay after which the service verifies that the worker confirmed a hand-out."""


def task(
    worker: str = "worker-1", epoch: int = 1, attempt: int = 1, *, died: bool = True
) -> ActivityRescheduleTask:
    """The reschedule task of an attempt that a worker lost in the given lease epoch."""
    lost = BoundActivity(*ID, attempt, "queue", b"token")
    return ActivityRescheduleTask("orders", lost, worker, epoch, died)


class ActivityScenario:
    def __init__(
        self, retry: Retry | None = None, policy: Policy = POLICY, limits: TimeLimits = NO_LIMITS
    ) -> None:
        self.spec = SPEC._replace(retry=retry or SPEC.retry, limits=limits)
        self.policy = policy
        self.activity: Activity | None = None
        self.now_ms = 1_000
        self.log: list[ActivityEvent] = []
        self.states: list[Activity | None] = [None]
        """The activity before the first event and after each."""
        self.wall_times: list[int] = []
        """The wall time of each event."""

    @property
    def known(self) -> Activity:
        assert self.activity is not None
        return self.activity

    def wait(self, ms: int) -> ActivityScenario:
        self.now_ms += ms
        return self

    def schedule(self, spec: ActivitySpec | None = None, delay_ms: int = 0) -> decide.ActivityEvents:
        return self._apply(
            decide.schedule(ID, self.activity, spec or self.spec, self.now_ms, decide.Start(delay_ms))
        )

    def start(self, worker: str = "worker-1", epoch: int = 1) -> AttemptHolder:
        """Hand the activity out and return the token given to the worker."""
        verify_ms = self.now_ms + VERIFY_AFTER_MS
        self._apply(decide.start(self.known, worker, epoch, self.now_ms, verify_ms, floor=1))
        return AttemptHolder(worker, epoch, self.known.attempt)

    def claim(self, worker: str = "worker-1", epoch: int = 1) -> decide.ActivityEvents:
        verify_ms = self.now_ms + VERIFY_AFTER_MS
        return self._apply(
            decide.claim(ID, self.activity, self.spec, worker, epoch, self.now_ms, verify_ms, floor=1)
        )

    def complete(self, holder: AttemptHolder, result: bytes = b"") -> decide.ActivityEvents:
        return self._apply(decide.complete(self.known, holder, result, self.now_ms))

    def fail(
        self,
        holder: AttemptHolder,
        message: str = "broken",
        *,
        retryable: bool = True,
        after_ms: int | None = None,
        quarantine: bool = False,
    ) -> decide.ActivityEvents:
        options: dict[str, Any] = {"retryable": retryable, "after_ms": after_ms, "quarantine": quarantine}
        return self._apply(decide.fail(self.known, holder, message, self.now_ms, **options))

    def heartbeat(self, holder: AttemptHolder, details: bytes | None = None) -> decide.ActivityEvents:
        said = None if details is None else HeartbeatDetails(details, "json/plain")
        return self._apply(decide.record_heartbeat(self.known, holder, said, self.now_ms))

    def time_out_if_over(self) -> decide.ActivityEvents:
        """Enforce the first time limit, if one is over."""
        over = [end for end in limit_ends(self.known) if end.end_ms <= self.now_ms]
        if not over:
            return ()
        end = min(over, key=lambda end: end.end_ms)
        return self._apply(decide.time_out(self.known, end, self.now_ms))

    def give_back(self, holder: AttemptHolder, reason: str = "released") -> decide.ActivityEvents:
        return self._apply(decide.give_back(self.known, holder, reason, self.now_ms))

    def cancel(self, reason: str = "not needed") -> decide.ActivityEvents:
        return self._apply(decide.cancel(self.known, reason, self.now_ms))

    def retry(self) -> decide.ActivityEvents:
        return self._apply(decide.restart(self.known, self.now_ms))

    def make_available_if_due(self) -> decide.ActivityEvents:
        return self._apply(decide.make_available_if_due(self.known, self.now_ms, WALL_MS + self.now_ms))

    def reschedule(
        self, lost: ActivityRescheduleTask, *, to_other_engine: bool = False
    ) -> decide.ActivityEvents:
        return self._apply(
            decide.reschedule(self.activity, lost, self.policy, self.now_ms, to_other_engine=to_other_engine)
        )

    def lose(
        self, holder: AttemptHolder, *, died: bool = True, to_other_engine: bool = False
    ) -> decide.ActivityEvents:
        """Reschedule the holder's attempt, because the worker died or unbound it."""
        return self.reschedule(task(*holder, died=died), to_other_engine=to_other_engine)

    def hand_on(self) -> decide.ActivityEvents:
        return self._apply(decide.hand_on(self.known, self.now_ms))

    def cancel_hand_on(self) -> decide.ActivityEvents:
        return self._apply(decide.cancel_hand_on(self.known, self.now_ms))

    def _apply(self, events: decide.ActivityEvents) -> decide.ActivityEvents:
        for event in events:
            self.wall_times.append(WALL_MS + self.now_ms)
            self.activity = evolve(self.activity, event, ID.workflow_id, self.wall_times[-1])
            self.log.append(event)
            self.states.append(self.activity)
        return events


def scheduled(
    retry: Retry | None = None, policy: Policy = POLICY, limits: TimeLimits = NO_LIMITS
) -> ActivityScenario:
    scenario = ActivityScenario(retry, policy, limits)
    scenario.schedule()
    return scenario
