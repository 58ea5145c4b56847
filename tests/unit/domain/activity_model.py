"""The promises about an activity in their simplest form: a phase, an attempt number and a holder.

The model knows no events. Each method returns what the call must do: True for a change, False for no change,
or the type of the refusal.
"""

from __future__ import annotations

from liveness.domain.activity import REMEMBERED_RELEASES_MAX, ActivityState
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import (
    ActivityDiffers,
    ActivityFinished,
    ActivityHeld,
    ActivityNotAvailable,
    ActivityNotRetryable,
    FencedOff,
    LivenessError,
)
from liveness.domain.events import NO_LIMITS, Retry, TimeLimits
from liveness.domain.reactions import ActivityRescheduleTask

Verdict = bool | type[LivenessError]

FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "HANDED_ON")


class ActivityModel:
    def __init__(self, retry: Retry, namespace_max_deaths: int, limits: TimeLimits = NO_LIMITS) -> None:
        self._given_retry = retry
        self._limits = limits
        self.close_by = 0
        """When all attempts together must be over; 0 for never."""
        self.phase_since = 0
        self.heard = 0
        self.details = b""
        self._namespace_max_deaths = namespace_max_deaths
        self.phase = ""
        """The name of its state; empty before the activity is known."""
        self.retry = Retry()
        self.is_scheduled = False
        self.is_ours = False
        """Whether this service hands out the attempts, instead of workers that only bind them by heartbeat."""
        self.attempt = 0
        self.holder: AttemptHolder | None = None
        self.since_epoch = 0
        """The epoch of the holder's lease at the hand-out."""
        self.failures = 0
        self.deaths = 0
        self.due_ms = 0
        self.result = b""
        self.last_end: tuple[str, AttemptHolder] | None = None
        self.taken: list[tuple[str, int, int]] = []

    @property
    def state(self) -> ActivityState:
        return ActivityState[self.phase]

    # -- scheduling, handing out, claiming

    def schedule(self, now_ms: int, delay_ms: int) -> Verdict:
        if self.phase:
            return False if self.is_scheduled else ActivityDiffers
        self.retry, self.is_scheduled, self.is_ours, self.attempt = self._given_retry, True, True, 1
        self._move(
            "WAITING" if delay_ms else "AVAILABLE", now_ms, due_ms=now_ms + delay_ms if delay_ms else 0
        )
        self._start_the_total(now_ms + delay_ms)
        return True

    def _start_the_total(self, now_ms: int) -> None:
        if self._limits.schedule_to_close_ms and self.is_scheduled:
            self.close_by = now_ms + self._limits.schedule_to_close_ms

    def start(self, worker: str, epoch: int, now_ms: int, verify_ms: int) -> None:
        assert self.phase == "AVAILABLE"
        self.is_ours = True
        self.holder, self.since_epoch = AttemptHolder(worker, epoch, self.attempt), epoch
        self._move("STARTED", now_ms, due_ms=verify_ms)
        self.heard = now_ms

    def claim(self, worker: str, epoch: int, now_ms: int, verify_ms: int) -> Verdict:
        if not self.phase:
            self.schedule(now_ms, 0)
        if self.phase == "AVAILABLE":
            self.start(worker, epoch, now_ms, verify_ms)
            return True
        if self.holder is not None:
            return False if self.holder[:2] == (worker, epoch) else ActivityHeld
        return ActivityFinished if self.phase in FINISHED else ActivityNotAvailable

    def keep_over_session(self, epoch: int) -> AttemptHolder:
        """A new session of the holder's worker continues the attempt in a new lease."""
        assert self.holder is not None
        self.holder = self.holder._replace(epoch=epoch)
        return self.holder

    # -- ends

    def heartbeat(self, token: AttemptHolder, now_ms: int, details: bytes | None) -> Verdict:
        if token != self.holder:
            return FencedOff
        self.heard = now_ms
        self.details = self.details if details is None else details
        return True

    def over(self, now_ms: int) -> str:
        """The limit that was over first; empty if none is."""
        limits, ends = self._limits, {}
        if self.phase == "STARTED":
            ends = {
                "start_to_close": limits.start_to_close_ms and self.phase_since + limits.start_to_close_ms,
                "heartbeat": limits.heartbeat_ms and self.heard + limits.heartbeat_ms,
            }
        elif self.phase == "AVAILABLE":
            ends = {
                "schedule_to_start": limits.schedule_to_start_ms
                and self.phase_since + limits.schedule_to_start_ms
            }
        if self.phase in ("STARTED", "AVAILABLE", "WAITING"):
            ends = {"schedule_to_close": self.close_by, **ends}
        over = {name: end for name, end in ends.items() if end and end <= now_ms}
        return min(over, key=lambda name: over[name]) if over else ""

    def time_out(self, now_ms: int) -> Verdict:
        limit = self.over(now_ms)
        if not limit or not self.is_scheduled:
            return False
        self.failures += self.holder is not None
        self.holder, self.deaths = None, 0
        is_last = self._exhausted or 0 < self.close_by <= now_ms + self._backoff_ms
        if limit in ("schedule_to_close", "schedule_to_start") or is_last:
            self._move("FAILED", now_ms)
        else:
            self.attempt += 1
            self._move("WAITING", now_ms, due_ms=now_ms + self._backoff_ms)
        return True

    def complete(self, token: AttemptHolder, result: bytes, now_ms: int) -> Verdict:
        verdict = self._end("complete", token)
        if verdict is True:
            self.result = result
            self._move("COMPLETED", now_ms)
        return verdict

    def fail(self, token: AttemptHolder, now_ms: int, *, retryable: bool, after_ms: int | None) -> Verdict:
        verdict = self._end("fail", token)
        if verdict is True:
            self.failures += 1
            wait_ms = self._backoff_ms if after_ms is None else after_ms
            if not retryable or self._exhausted or 0 < self.close_by <= now_ms + wait_ms:
                self._move("FAILED", now_ms)
            else:
                self.attempt += 1
                self._move("WAITING", now_ms, due_ms=now_ms + wait_ms)
        return verdict

    def give_back(self, token: AttemptHolder, now_ms: int) -> Verdict:
        verdict = self._end("give_back", token)
        if verdict is True:
            self.attempt += 1
            self._move("AVAILABLE", now_ms)
        return verdict

    def _end(self, call: str, token: AttemptHolder) -> Verdict:
        if self.last_end == (call, token):
            return False
        if token != self.holder:
            return FencedOff
        self.last_end, self.holder, self.deaths = (call, token), None, 0
        return True

    @property
    def _exhausted(self) -> bool:
        return self.retry.max_attempts > 0 and self.failures >= self.retry.max_attempts

    @property
    def _backoff_ms(self) -> int:
        wait_ms = self.retry.initial_ms
        for _ in range(self.failures - 1):
            wait_ms = min(int(wait_ms * self.retry.coefficient), self.retry.max_ms)
        return min(wait_ms, self.retry.max_ms)

    def cancel(self) -> Verdict:
        if self.phase == "CANCELLED":
            return False
        if self.phase in FINISHED:
            return ActivityFinished
        self.holder = None
        self._move("CANCELLED", self.phase_since)
        return True

    # -- retries, timers, hand-on and losses

    def restart(self, now_ms: int) -> Verdict:
        if self.phase not in ("QUARANTINED", "FAILED"):
            return ActivityNotRetryable
        self.attempt += 1
        self.failures = self.deaths = 0
        self._start_the_total(now_ms)
        self._move("AVAILABLE", now_ms)
        return True

    def make_available_if_due(self, now_ms: int) -> Verdict:
        if self.phase != "WAITING" or now_ms < self.due_ms:
            return False
        self._move("AVAILABLE", now_ms)
        return True

    def hand_on(self) -> Verdict:
        if self.phase != "RELEASED":
            return False
        self._move("HANDED_ON", self.phase_since)
        return True

    def cancel_hand_on(self, now_ms: int) -> None:
        self._move("AVAILABLE", now_ms)

    def is_loss(self, task: ActivityRescheduleTask) -> bool:
        """Return whether the task takes the activity from a holder."""
        attempt = task.activity.attempt
        if self.phase in ("COMPLETED", "FAILED", "CANCELLED", "QUARANTINED"):
            return False
        if (task.worker, task.epoch, attempt) in self.taken:
            return False
        if self.holder is not None:
            is_holders = (self.holder.worker, self.holder.attempt) == (task.worker, attempt)
            return is_holders and task.epoch >= self.since_epoch
        return not self.is_ours or attempt >= self.attempt

    def reschedule(self, task: ActivityRescheduleTask, now_ms: int, *, to_other_engine: bool) -> Verdict:
        if not self.is_loss(task):
            return False
        attempt = task.activity.attempt
        self.taken = [*self.taken, (task.worker, task.epoch, attempt)][-REMEMBERED_RELEASES_MAX:]
        in_a_row = self.deaths if attempt == self.attempt else 0
        self.deaths = in_a_row + 1 if task.died else 0
        self.failures += 1 if task.died else 0
        self.attempt = max(self.attempt, attempt)
        self.holder = None
        if 0 < self._max_deaths <= self.deaths:
            self._move("QUARANTINED", now_ms)
        elif task.died and self._exhausted:
            self.deaths = 0
            self._move("FAILED", now_ms)
        else:
            self.attempt += 1
            self._move("RELEASED" if to_other_engine else "AVAILABLE", now_ms)
        return True

    @property
    def _max_deaths(self) -> int:
        own = self.retry.max_deaths
        return self._namespace_max_deaths if own is None else own

    def _move(self, phase: str, now_ms: int, due_ms: int = 0) -> None:
        self.phase, self.phase_since, self.due_ms = phase, now_ms, due_ms
