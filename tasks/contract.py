"""What a task is, and the closed set of ways its execution can end.

Two species: a timer task runs inside the shard, at once, without I/O; a queued task runs outside it and may wait for
others. Neither may do the other's work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """It happened."""


@dataclass(frozen=True, slots=True)
class Stale:
    """It no longer applies; nothing happened."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Look again then."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not work this time."""

    error: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """It cannot be tried now, through no fault of its own; it waits until what it needs is back."""

    reason: str


TimerOutcome = Done | Stale | NotYet
QueueOutcome = Done | Stale | Failed | Postponed
