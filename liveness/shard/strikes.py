"""How many workers of each namespace died lately, here and elsewhere: what a storm is told by.

Apart from the obituaries, which remember each one and therefore not more than some thousands.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.storm import WINDOW_MS

SLICE_MS = 500
TOLD_MS = 5_000
"""What another node said counts for so long: it tells again while workers go on falling due."""
NODES_MAX = 1_000
NAMESPACES_MAX = 1_000
"""Of which one other node is heard."""


class Counted(NamedTuple):
    struck: int
    """Workers that fell due and did not come back, or died within the window."""
    of: int
    """These and all that are ACTIVE."""

    def and_also(self, other: Counted) -> Counted:
        return Counted(self.struck + other.struck, self.of + other.of)


NOBODY = Counted(0, 0)


class Strikes:
    __slots__ = ("_clock", "_forgotten_ms", "_here", "_told")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._here: dict[str, deque[tuple[int, int]]] = {}
        """When, on the monotonic clock, in slices, and how many; oldest first."""
        self._told: dict[str, dict[str, tuple[int, Counted]]] = {}
        """By node and namespace: when it said so, and what."""
        self._forgotten_ms = 0

    def add(self, namespace: str, count: int) -> None:
        now_ms = self._clock.monotonic_ms()
        slices = self._here.setdefault(namespace, deque())
        if slices and now_ms - slices[-1][0] < SLICE_MS:
            at_ms, before = slices.pop()
            slices.append((at_ms, before + count))
        else:
            slices.append((now_ms, count))

    def recent(self, namespace: str) -> int:
        oldest_ms = self._clock.monotonic_ms() - WINDOW_MS
        return sum(count for at_ms, count in self._here.get(namespace, ()) if at_ms >= oldest_ms)

    def namespaces(self) -> list[str]:
        return list(self._here)

    # -- other nodes

    def hear(self, node_id: str, namespace: str, counted: Counted) -> None:
        told = self._told.setdefault(node_id, {}) if len(self._told) < NODES_MAX else self._told.get(node_id)
        if told is not None and (namespace in told or len(told) < NAMESPACES_MAX):
            told[namespace] = (self._clock.monotonic_ms(), counted)

    def elsewhere(self, namespace: str) -> Counted:
        oldest_ms, found = self._clock.monotonic_ms() - TOLD_MS, NOBODY
        for told in self._told.values():
            at_ms, counted = told.get(namespace, (0, NOBODY))
            if at_ms >= oldest_ms:
                found = found.and_also(counted)
        return found

    def forget_old(self) -> bool:
        """Namespaces and nodes come and go. Returns whether it was time to."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._forgotten_ms < SLICE_MS:
            return False
        self._forgotten_ms = now_ms
        for namespace, slices in list(self._here.items()):
            while slices and slices[0][0] < now_ms - WINDOW_MS:
                slices.popleft()
            if not slices:
                del self._here[namespace]
        for node_id, told in list(self._told.items()):
            for namespace in [name for name, (at_ms, _) in told.items() if at_ms < now_ms - TOLD_MS]:
                del told[namespace]
            if not told:
                del self._told[node_id]
        return True
