"""Counts the recent deaths of each namespace, on this node and on others, to detect storms.

These are counts only and have no limit. `diagnostics.recent_deaths` remembers each death and keeps some thousands.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.storm import STORM_WINDOW_MS

BUCKET_MS = 500
REPORT_TTL_MS = 5_000
"""How long another node's report counts. The node reports again while its workers keep dying."""
NODES_MAX = 1_000
NAMESPACES_MAX = 1_000
"""How many namespaces one other node may report."""


class DeathCount(NamedTuple):
    dead: int
    """Workers that died within the window, and those that a storm holds."""
    total: int
    """The dead and all ACTIVE workers."""

    def plus(self, other: DeathCount) -> DeathCount:
        return DeathCount(self.dead + other.dead, self.total + other.total)


NO_DEATHS = DeathCount(0, 0)


class DeathRate:
    __slots__ = ("_clock", "_local", "_pruned_ms", "_reports")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._local: dict[str, deque[tuple[int, int]]] = {}
        """By namespace: the start of each time slice on the monotonic clock, and its deaths; oldest first."""
        self._reports: dict[str, dict[str, tuple[int, DeathCount]]] = {}
        """By node and namespace: when the report came, and what it said."""
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
        """Forget counts that are too old, at most once per time slice. Returns whether it did."""
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
