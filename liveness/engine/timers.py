"""Where a shard says when a worker or an activity must be looked at again."""

from __future__ import annotations

from typing import Protocol

from liveness.domain.keys import ActivityKey, WorkerKey

TimerKey = WorkerKey | ActivityKey


class Timers(Protocol):
    def arm(self, key: TimerKey, due_ms: int) -> None: ...

    def disarm(self, key: TimerKey) -> None: ...
