"""Activities that wait for a worker: how many, for how long, and whether any worker polls for them.

Counted anew every few seconds from the shards' backlogs: one step per task queue and shard, however many activities wait. Clients
may use as many task queues as they have activities, so it is done in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nlargest
from typing import NamedTuple

from liveness.engine.backlog import BacklogKey
from liveness.engine.node import Node
from liveness.slices import end_slice, in_slices

KEYS_PER_SLICE = 1_000
NAMED_QUEUES_MAX = 100
"""The task queues of a namespace that are named: those in which activities wait longest."""

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
        self._named: dict[tuple[str, bool], list[QueueBacklog]] = {}
        """By namespace, and whether no worker polls them."""
        self._namespaces: dict[str, NamespaceBacklog] = {}

    async def refresh(self) -> None:
        queues: dict[tuple[str, str, bool], QueueBacklog] = {}
        unpolled: dict[BacklogKey, bool] = {}
        for shard in self._node.shards():
            available = shard.activities.backlog.available
            async for key in in_slices(list(available), KEYS_PER_SLICE):
                if not (waiting := available.get(key)):
                    continue  # they were handed out meanwhile
                if key not in unpolled:
                    unpolled[key] = self._is_unpolled(key)
                name = key.namespace, key.task_queue, unpolled[key]
                before = queues.get(name) or QueueBacklog(*name)
                age_ms = shard.now_ms() - next(iter(waiting.values()))
                queues[name] = before._replace(
                    available=before.available + len(waiting), oldest_ms=max(before.oldest_ms, age_ms)
                )
            await end_slice()
        namespaces: dict[str, NamespaceBacklog] = {}
        named: dict[tuple[str, bool], list[QueueBacklog]] = {}
        async for queue in in_slices(queues.values(), KEYS_PER_SLICE):
            namespaces[queue.namespace] = _add_queue(namespaces.get(queue.namespace, NOTHING_WAITS), queue)
            of_namespace = named.setdefault((queue.namespace, queue.unpolled), [])
            of_namespace.append(queue)
            if len(of_namespace) >= 2 * NAMED_QUEUES_MAX:
                of_namespace[:] = _longest(of_namespace)
        self._named = {name: _longest(of_namespace) for name, of_namespace in named.items()}
        self._namespaces = namespaces

    def _is_unpolled(self, key: BacklogKey) -> bool:
        limit_ms = self._node.policies.of(key.namespace).unpolled_alert_ms
        return limit_ms > 0 and self._unattended_ms(*key) >= limit_ms

    def of(self, namespace: str) -> NamespaceBacklog:
        return self._namespaces.get(namespace, NOTHING_WAITS)

    def namespaces(self) -> Iterator[tuple[str, NamespaceBacklog]]:
        yield from self._namespaces.items()

    def queues(self, namespace: str, *, unpolled: bool) -> list[QueueBacklog]:
        """Of one namespace, or without a name, of all; the one that waits longest first. At most `NAMED_QUEUES_MAX`."""
        if namespace:
            return self._named.get((namespace, unpolled), [])
        return _longest(
            [
                queue
                for (_, is_unpolled), queues in self._named.items()
                if is_unpolled is unpolled
                for queue in queues
            ]
        )

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


def _longest(queues: list[QueueBacklog]) -> list[QueueBacklog]:
    return nlargest(NAMED_QUEUES_MAX, queues, key=lambda queue: queue.oldest_ms)
