"""Activities that wait for a worker: how many, for how long, and whether any worker polls for them.

Counted anew every few seconds from the shards' backlogs: one step per task queue and shard, however many activities wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from liveness.engine.backlog import BacklogKey
from liveness.engine.node import Node

UnattendedMs = Callable[[str, str, str], int]
"""How long no worker has attended a task queue for activities of a type."""


class QueueBacklog(NamedTuple):
    """One task queue: the activities in it that workers poll for, or those that no worker polls for."""

    namespace: str
    task_queue: str
    unpolled: bool
    available: int = 0
    oldest_ms: int = 0


class NamespaceBacklog(NamedTuple):
    available: int = 0
    unpolled: int = 0
    """Those in task queues that no worker polls."""
    oldest_polled_ms: int | None = None
    oldest_unpolled_ms: int | None = None

    @property
    def oldest_ms(self) -> int:
        return max(self.oldest_polled_ms or 0, self.oldest_unpolled_ms or 0)


NOTHING_WAITS = NamespaceBacklog()


class WaitingWork:
    def __init__(self, node: Node, unattended_ms: UnattendedMs) -> None:
        self._node = node
        self._unattended_ms = unattended_ms
        self._queues: list[QueueBacklog] = []
        self._namespaces: dict[str, NamespaceBacklog] = {}

    async def refresh(self) -> None:
        found: dict[BacklogKey, tuple[int, int]] = {}
        for shard in self._node.shards():
            now_ms = shard.now_ms()
            for key, waiting in shard.activities.backlog.available.items():
                count, oldest_ms = found.get(key, (0, 0))
                age_ms = now_ms - next(iter(waiting.values()))
                found[key] = count + len(waiting), max(oldest_ms, age_ms)
            await asyncio.sleep(0)  # heartbeats first
        queues: dict[tuple[str, str, bool], QueueBacklog] = {}
        for key, (count, oldest_ms) in found.items():
            name = key.namespace, key.task_queue, self._is_unpolled(key)
            before = queues.get(name, QueueBacklog(*name))
            queues[name] = before._replace(
                available=before.available + count, oldest_ms=max(before.oldest_ms, oldest_ms)
            )
        self._queues = sorted(queues.values(), key=lambda queue: -queue.oldest_ms)
        self._namespaces = {}
        for queue in self._queues:
            namespace = queue.namespace
            self._namespaces[namespace] = _add_queue(self._namespaces.get(namespace, NOTHING_WAITS), queue)

    def _is_unpolled(self, key: BacklogKey) -> bool:
        limit_ms = self._node.policies.of(key.namespace).unpolled_alert_ms
        return limit_ms > 0 and self._unattended_ms(*key) >= limit_ms

    def of(self, namespace: str) -> NamespaceBacklog:
        return self._namespaces.get(namespace, NOTHING_WAITS)

    def namespaces(self) -> Iterator[tuple[str, NamespaceBacklog]]:
        yield from self._namespaces.items()

    def queues(self, namespace: str, *, unpolled: bool) -> list[QueueBacklog]:
        """Of one namespace, or without a name, of all; the one that waits longest first."""
        return [
            queue
            for queue in self._queues
            if queue.unpolled is unpolled and namespace in ("", queue.namespace)
        ]

    def available_counts(self) -> Counter[str]:
        """Counts available activities by namespace, as of now."""
        counts: Counter[str] = Counter()
        for shard in self._node.shards():
            counts.update(shard.activities.backlog.available_counts)
        return counts


def _add_queue(backlog: NamespaceBacklog, queue: QueueBacklog) -> NamespaceBacklog:
    backlog = backlog._replace(available=backlog.available + queue.available)
    if queue.unpolled:
        return backlog._replace(
            unpolled=backlog.unpolled + queue.available,
            oldest_unpolled_ms=max(backlog.oldest_unpolled_ms or 0, queue.oldest_ms),
        )
    return backlog._replace(oldest_polled_ms=max(backlog.oldest_polled_ms or 0, queue.oldest_ms))
