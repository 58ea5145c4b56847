"""How much waits in the stored queues, and for how long. Read from the store now and then: memory holds no queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from liveness.clock import stopwatch
from liveness.shard.node import Node
from liveness.store.api import QueueCount, TaskState
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.telemetry")

LOOK_EVERY_MS = 5_000
REST_FACTOR = 20
"""A look that takes long is taken less often: it may use so small a part of the time."""


class Depth(NamedTuple):
    """Of one shard's queue."""

    pending: int
    retrying: int
    dead_lettered: int
    oldest_wall_ms: int | None
    """Since when the oldest one has been waiting that is not dead-lettered."""


class Queues:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._counts: list[QueueCount] = []
        self.depth = 0
        """Unfinished tasks, dead letters left out."""

    async def run(self) -> None:
        while True:
            seconds = stopwatch()
            try:
                await self.look()
            except StoreError as error:
                logger.info("cannot look at the queues", why=str(error))
            await self._node.clock.sleep(max(LOOK_EVERY_MS, seconds() * 1_000 * REST_FACTOR))

    async def look(self) -> None:
        owned = [shard.id for shard in self._node.shards()]
        self._counts = await self._node.store.count_tasks(owned)
        self.depth = sum(row.tasks for row in self._counts if row.state is not TaskState.DEAD_LETTERED)

    def _serving(self) -> Iterable[QueueCount]:
        """Who has let go of a shard since says nothing about its queue."""
        return (row for row in self._counts if self._node.serves(row.shard_id))

    def depths(self, namespace: str = "") -> dict[int, Depth]:
        """By shard; of one namespace, or of all."""
        found: dict[int, Depth] = {}
        for row in self._serving():
            if namespace and row.namespace != namespace:
                continue
            before = found.get(row.shard_id, Depth(0, 0, 0, None))
            name = row.state.name.lower()
            after = before._replace(**{name: getattr(before, name) + row.tasks})
            if row.state is not TaskState.DEAD_LETTERED:
                oldest = min(row.oldest_wall_ms, after.oldest_wall_ms or row.oldest_wall_ms)
                after = after._replace(oldest_wall_ms=oldest)
            found[row.shard_id] = after
        return found

    def dead_lettered(self) -> Counter[str]:
        """Per namespace."""
        found: Counter[str] = Counter()
        for row in self._serving():
            if row.state is TaskState.DEAD_LETTERED:
                found[row.namespace] += row.tasks
        return found
