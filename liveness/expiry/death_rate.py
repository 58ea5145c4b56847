"""How many workers of each namespace died lately, here and elsewhere: what a storm is told by.

Apart from the obituaries, which remember each one and therefore not more than some thousands.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.storm import STORM_WINDOW_MS

BUCKET_MS = 500
REPORT_TTL_MS = 5_000
"""What another node said counts for so long: it tells again while workers go on falling due."""
NODES_MAX = 1_000
NAMESPACES_MAX = 1_000
"""Of which one other node is heard."""


class DeathCount(NamedTuple):
    dead: int
    """Workers that fell due and did not come back, or died within the window."""
    of: int
    """These and all that are ACTIVE."""

    def plus(self, other: DeathCount) -> DeathCount:
        return DeathCount(self.dead + other.dead, self.of + other.of)


NO_DEATHS = DeathCount(0, 0)


class DeathRate:
    __slots__ = ("_clock", "_local", "_pruned_ms", "_reports")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._local: dict[str, deque[tuple[int, int]]] = {}
        """When, on the monotonic clock, in slices, and how many; oldest first."""
        self._reports: dict[str, dict[str, tuple[int, DeathCount]]] = {}
        """By node and namespace: when it said so, and what."""
        self._pruned_ms = 0

    def add(self, namespace: str, count: int) -> None:
        now_ms = self._clock.monotonic_ms()
        buckets = self._local.setdefault(namespace, deque())
        if buckets and now_ms - buckets[-1][0] < BUCKET_MS:
            at_ms, before = buckets.pop()
            buckets.append((at_ms, before + count))
        else:
            buckets.append((now_ms, count))

    def recent(self, namespace: str) -> int:
        oldest_ms = self._clock.monotonic_ms() - STORM_WINDOW_MS
        return sum(count for at_ms, count in self._local.get(namespace, ()) if at_ms >= oldest_ms)

    def namespaces(self) -> list[str]:
        return list(self._local)

    # -- other nodes

    def record_report(self, node_id: str, namespace: str, death_count: DeathCount) -> None:
        reports = (
            self._reports.setdefault(node_id, {})
            if len(self._reports) < NODES_MAX
            else self._reports.get(node_id)
        )
        if reports is not None and (namespace in reports or len(reports) < NAMESPACES_MAX):
            reports[namespace] = (self._clock.monotonic_ms(), death_count)

    def on_other_nodes(self, namespace: str) -> DeathCount:
        oldest_ms, found = self._clock.monotonic_ms() - REPORT_TTL_MS, NO_DEATHS
        for reports in self._reports.values():
            at_ms, death_count = reports.get(namespace, (0, NO_DEATHS))
            if at_ms >= oldest_ms:
                found = found.plus(death_count)
        return found

    def prune(self) -> bool:
        """Namespaces and nodes come and go. Returns whether it was time to."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._pruned_ms < BUCKET_MS:
            return False
        self._pruned_ms = now_ms
        for namespace, buckets in list(self._local.items()):
            while buckets and buckets[0][0] < now_ms - STORM_WINDOW_MS:
                buckets.popleft()
            if not buckets:
                del self._local[namespace]
        for node_id, reports in list(self._reports.items()):
            for namespace in [name for name, (at_ms, _) in reports.items() if at_ms < now_ms - REPORT_TTL_MS]:
                del reports[namespace]
            if not reports:
                del self._reports[node_id]
        return True
