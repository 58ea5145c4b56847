"""The attempts of an activity, from its events."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCancelRequested,
    ActivityCompleted,
    ActivityEvent,
    ActivityFailed,
    ActivityGivenBack,
    ActivityHeartbeatRecorded,
    ActivityStarted,
    ActivityTimedOut,
)


class AttemptOutcome(IntEnum):
    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    TIMED_OUT = 4
    WORKER_DIED = 5
    LOST = 6
    """Its worker let go of it or left in order."""
    GIVEN_BACK = 7
    CANCELLED = 8


class AttemptRecord(NamedTuple):
    attempt: int
    worker: str
    epoch: int
    start_wall_ms: int
    """0 for an attempt that its worker bound by heartbeat alone."""
    end_wall_ms: int = 0
    """0 while it runs."""
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    message: str = ""
    stack_trace: str = ""
    limit: str = ""
    """The `TimeLimit` that ended it."""
    heard_wall_ms: int = 0
    """When it last sent a heartbeat, as far as those events are kept."""


class TimedEvent(NamedTuple):
    wall_ms: int
    event: ActivityEvent


def attempts_of(history: Iterable[TimedEvent]) -> list[AttemptRecord]:
    """The attempts that the events tell of, oldest first. The history may begin in the middle."""
    done: list[AttemptRecord] = []
    running: AttemptRecord | None = None
    for wall_ms, event in history:
        match event:
            case ActivityStarted():
                running = AttemptRecord(event.attempt, event.worker, event.epoch, wall_ms)
            case ActivityHeartbeatRecorded():
                if running is not None:
                    running = running._replace(heard_wall_ms=wall_ms)
            case _ if (ended := _ended(event, wall_ms, running)) is not None:
                done.append(ended)
                running = None
    return done if running is None else [*done, running]


def _ended(event: ActivityEvent, wall_ms: int, running: AttemptRecord | None) -> AttemptRecord | None:
    if isinstance(event, ActivityCancelled):
        if running is None:
            return None
        outcome, message = AttemptOutcome.CANCELLED, event.reason
        return running._replace(end_wall_ms=wall_ms, outcome=outcome, message=message)
    if not isinstance(event, _ENDS) or not event.worker:
        return None
    if running is None and isinstance(event, ActivityFailed):
        return None  # the last allowed death, which is an event of its own
    known = running or AttemptRecord(event.attempt, event.worker, event.epoch, 0)
    known = known._replace(end_wall_ms=wall_ms)
    match event:
        case ActivityCompleted():
            return known._replace(outcome=AttemptOutcome.COMPLETED)
        case ActivityAttemptFailed() | ActivityFailed():
            return known._replace(
                outcome=AttemptOutcome.FAILED, message=event.message, stack_trace=event.stack_trace
            )
        case ActivityTimedOut():
            return known._replace(
                outcome=AttemptOutcome.TIMED_OUT,
                message=event.message,
                limit=event.limit.value,
                heard_wall_ms=event.heard_wall_ms,
            )
        case ActivityGivenBack():
            return known._replace(outcome=AttemptOutcome.GIVEN_BACK, message=event.reason)
        case ActivityCancelRequested():
            died = event.deaths > 0
            return known._replace(outcome=AttemptOutcome.WORKER_DIED if died else AttemptOutcome.LOST)


_ENDS = (
    ActivityCompleted,
    ActivityAttemptFailed,
    ActivityFailed,
    ActivityTimedOut,
    ActivityGivenBack,
    ActivityCancelRequested,
)
