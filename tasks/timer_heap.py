"""The heap of deadlines, one live entry per worker and per activity.

A renewal moves a deadline later and does not touch the heap: the old entry fires early, the runner finds the new
deadline and arms it again. So a heartbeat costs nothing here, and a worker costs one heap operation per lease.

An entry has no stamp. It means "look at this worker now", and the runner derives from the state what there is to do.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from liveness.engine.timers import TimerKey

DEAD_ENTRIES_MAX = 10_000


class TimerHeap:
    """Deadlines of one shard, on its observed clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, TimerKey]] = []
        self._armed: dict[TimerKey, int] = {}
        """The deadline of each live entry. Entries of the heap that differ from it are skipped."""

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: TimerKey, due_ms: int) -> None:
        self._armed[key] = due_ms
        heappush(self._heap, (due_ms, key))
        if len(self._heap) > 2 * len(self._armed) + DEAD_ENTRIES_MAX:
            self._heap = [(due_ms, key) for key, due_ms in self._armed.items()]
            heapify(self._heap)

    def disarm(self, key: TimerKey) -> None:
        self._armed.pop(key, None)

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Disarm and return the next key whose deadline has passed; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, key = heappop(heap)
            if self._armed.get(key) == due_ms:
                del self._armed[key]
                return key
        return None


class TimerHeaps:
    """The timer heaps of all shards that a node serves, by shard id."""

    def __init__(self) -> None:
        self._heaps: dict[int, TimerHeap] = {}

    def new_heap(self, shard_id: int) -> TimerHeap:
        """An empty heap for a shard that was just taken. It replaces the heap of an earlier tenure."""
        heap = self._heaps[shard_id] = TimerHeap()
        return heap

    def __getitem__(self, shard_id: int) -> TimerHeap:
        return self._heaps[shard_id]
