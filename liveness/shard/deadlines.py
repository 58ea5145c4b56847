"""Where a shard says when a worker or an activity must be looked at again."""

from __future__ import annotations

from typing import Protocol

from liveness.domain.keys import ActivityKey, WorkerKey

Subject = WorkerKey | ActivityKey


class Deadlines(Protocol):
    def arm(self, key: Subject, due_ms: int) -> None: ...

    def disarm(self, key: Subject) -> None: ...
