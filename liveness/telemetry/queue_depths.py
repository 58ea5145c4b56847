"""Depth and age of the stored queues. Read from the store now and then, because memory holds no queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from liveness.engine.node import Node
from liveness.store.api import QueueCount, TaskState


class QueueDepth(NamedTuple):
    """The queue of one shard."""

    pending: int
    retrying: int
    dead_lettered: int
    oldest_wall_ms: int | None
    """When the oldest task was created that is not dead-lettered."""


class QueueDepths:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._counts: list[QueueCount] = []
        self.total = 0
        """Unfinished tasks without dead letters."""

    async def refresh(self) -> None:
        owned = [shard.id for shard in self._node.shards()]
        self._counts = await self._node.store.count_tasks(owned)
        self.total = sum(row.tasks for row in self._counts if row.state is not TaskState.DEAD_LETTERED)

    def _served_counts(self) -> Iterable[QueueCount]:
        """Leave out shards that this node has stopped serving since the last refresh."""
        return (row for row in self._counts if self._node.serves(row.shard_id))

    def by_shard(self, namespace: str = "") -> dict[int, QueueDepth]:
        """`namespace`: count the tasks of one namespace only."""
        found: dict[int, QueueDepth] = {}
        for row in self._served_counts():
            if namespace and row.namespace != namespace:
                continue
            before = found.get(row.shard_id, QueueDepth(0, 0, 0, None))
            name = row.state.name.lower()
            after = before._replace(**{name: getattr(before, name) + row.tasks})
            if row.state is not TaskState.DEAD_LETTERED:
                oldest = min(row.oldest_wall_ms, after.oldest_wall_ms or row.oldest_wall_ms)
                after = after._replace(oldest_wall_ms=oldest)
            found[row.shard_id] = after
        return found

    def dead_lettered(self) -> Counter[str]:
        """Counts dead letters by namespace."""
        found: Counter[str] = Counter()
        for row in self._served_counts():
            if row.state is TaskState.DEAD_LETTERED:
                found[row.namespace] += row.tasks
        return found
