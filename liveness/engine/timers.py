"""The interface by which a shard arms the timers of its workers and activities."""

from __future__ import annotations

from typing import Protocol

from liveness.domain.keys import ActivityKey, WorkerKey

TimerKey = WorkerKey | ActivityKey


class Timers(Protocol):
    def arm(self, key: TimerKey, due_ms: int) -> None: ...

    def disarm(self, key: TimerKey) -> None: ...
