"""Remembers when this process may have missed heartbeats because it stood still, heard calls late, or its commits
hung."""

from __future__ import annotations

from collections import deque

from liveness.domain.death_certificate import Stall

STALL_MS = 500
"""Shorter stalls are ignored."""
STALLS_KEPT = 64


class Stalls:
    __slots__ = ("_ends_ms", "kept")

    def __init__(self) -> None:
        self.kept: deque[Stall] = deque(maxlen=STALLS_KEPT)
        """Oldest first."""
        self._ends_ms = 0

    def add(self, end_wall_ms: int, duration_ms: int) -> None:
        """Record a stall that ends now. It is merged with the stall before if it began during that one, as a commit does
        that hung because the process stood still."""
        start_ms = end_wall_ms - duration_ms
        if self.kept and start_ms <= self._ends_ms:
            start_ms = min(start_ms, self.kept.pop().wall_ms)
        self._ends_ms = end_wall_ms
        self.kept.append(Stall(start_ms, end_wall_ms - start_ms))

    def between(self, from_wall_ms: int, to_wall_ms: int) -> list[Stall]:
        """Return the stalls that overlap this time, oldest first."""
        return [
            stall
            for stall in self.kept
            if stall.wall_ms <= to_wall_ms and stall.wall_ms + (stall.duration_ms or 0) > from_wall_ms
        ]
