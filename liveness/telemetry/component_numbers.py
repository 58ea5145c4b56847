"""What metrics say about supervised and registered components, counted anew every few seconds.

There may be as many as workers, so they are counted in slices, and a reader of metrics looks at no component.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import nsmallest
from typing import NamedTuple

from liveness.domain.component import group_of
from liveness.domain.registry import OFFLINE
from liveness.domain.registry_decider import is_stale
from liveness.engine.component_index import RECENT_MS, TOGETHER_MS
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.slices import end_slice, in_slices

GROUPS_MAX = 1_000
"""So many groups have values of their own."""
PER_SLICE = 2_000

GroupName = tuple[str, str]
"""A namespace, and the name of a group."""


class ComponentGroup(NamedTuple):
    """The part of a group whose components are in the node's shards."""

    size: int
    """Components that are not STOPPED."""
    crashed: int
    """Within the last minute."""


class ComponentNumbers:
    def __init__(self, node: Node, has_own_label: Callable[[str], bool]) -> None:
        """`has_own_label`: whether a namespace has values of its own."""
        self._node = node
        self._has_own_label = has_own_label
        self._last_crash_ms: dict[str, int] = {}
        self._recent_restarts: dict[str, int] = {}
        self._groups: dict[GroupName, ComponentGroup] = {}
        self._stale: Counter[str] = Counter()

    def last_crashes(self) -> dict[str, int]:
        """When a component crashed last, as wall time by namespace."""
        return self._last_crash_ms

    def recent_restarts(self) -> dict[str, int]:
        """The restarts of the component that was restarted most within 5 minutes, by namespace."""
        return self._recent_restarts

    def groups(self) -> dict[GroupName, ComponentGroup]:
        """By namespace and name, the first `GROUPS_MAX`; only of namespaces with values of their own."""
        return self._groups

    def stale_entries(self) -> Counter[str]:
        """Registered components that have a live lease and are stale, by namespace."""
        return self._stale

    async def refresh(self) -> None:
        last_crash_ms: dict[str, int] = {}
        restarts: dict[str, int] = {}
        sizes: Counter[GroupName] = Counter()
        crashed: Counter[GroupName] = Counter()
        stale: Counter[str] = Counter()
        for shard in self._node.shards():
            await self._count_crashes(shard, last_crash_ms, restarts, crashed)
            group_sizes = shard.census.components.group_sizes
            async for name in in_slices(list(group_sizes), PER_SLICE):
                if self._has_own_label(name[0]) and (size := group_sizes[name]):
                    sizes[name] += size
            await self._count_stale(shard, stale)
            await end_slice()
        self._last_crash_ms, self._recent_restarts, self._stale = last_crash_ms, restarts, stale
        self._groups = {
            name: ComponentGroup(sizes[name], crashed[name]) for name in nsmallest(GROUPS_MAX, sizes)
        }

    async def _count_crashes(
        self,
        shard: Shard,
        last_crash_ms: dict[str, int],
        most_restarts: dict[str, int],
        crashed: Counter[GroupName],
    ) -> None:
        """Look only at components that ever crashed."""
        crashes = shard.census.components.last_crash_ms
        wall_ms = self._node.clock.wall_ms()
        async for key in in_slices(list(crashes), PER_SLICE):
            crash_ms, worker = crashes.get(key), shard.workers.get(key)
            if crash_ms is None or worker is None:
                continue  # it was forgotten meanwhile
            namespace = key.namespace
            last_crash_ms[namespace] = max(last_crash_ms.get(namespace, 0), crash_ms)
            if crash_ms > wall_ms - TOGETHER_MS:
                crashed[namespace, group_of(key.instance_key) or ""] += 1
            component, since_ms = worker.standing.component, wall_ms - RECENT_MS
            if component is not None and component.last_restart_ms > since_ms:
                restarts = sum(since_ms < at_ms for at_ms in component.restarts)
                most_restarts[namespace] = max(most_restarts.get(namespace, 0), restarts)

    async def _count_stale(self, shard: Shard, stale: Counter[str]) -> None:
        """Look only at registered components."""
        statuses = shard.census.registry.statuses
        async for key in in_slices(list(statuses), PER_SLICE):
            worker = shard.workers.get(key)
            if worker is None or statuses.get(key, OFFLINE) == OFFLINE:
                continue
            if (entry := worker.standing.entry) is not None:
                stale[key.namespace] += is_stale(worker, entry, shard.now_ms())
