"""The closed set of ways in which the execution of a task can end.

There are two kinds of task. A timer task runs inside the shard, synchronously and without I/O. A queued task runs
outside the shard and may wait. Neither may do the other's work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The task took effect."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The task no longer applies and changed nothing."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The task is not due before `due_ms`; the timer is armed again."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt failed; the task is retried or dead-lettered."""

    error: str


@dataclass(frozen=True, slots=True)
class Unreadable(Failed):
    """The row of the task is damaged; the task is dead-lettered at once, and the row stays as it is."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """The task cannot be attempted because its sink is down. It is parked, and this does not count as an attempt."""

    reason: str


TimerOutcome = Done | Stale | NotYet
QueueOutcome = Done | Stale | Failed | Postponed
