"""The timers of a shard, one live entry per worker and per activity.

A renewal moves a deadline later and does not touch its timer: the old entry fires early, the runner finds the new
deadline and arms it again. So a heartbeat costs nothing here, and a worker costs one entry per lease.

An entry has no stamp. It means "look at this worker now", and the runner derives from the state what there is to do.

Only timers of the present period are in a heap. Those of later periods are in lists, one per period, which go into the heap
when their period begins. A heap of a million timers would take a tuple for each, and its order a dozen comparisons in
memory that no processor cache holds.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from liveness.engine.timers import TimerKey

DEAD_ENTRIES_MAX = 10_000
PERIOD_MS = 1_000


class TimerHeap:
    """Deadlines of one shard, on its observed clock."""

    def __init__(self) -> None:
        self._armed: dict[TimerKey, int] = {}
        """The deadline of each live entry. Entries that differ from it are skipped."""
        self._heap: list[tuple[int, TimerKey]] = []
        """The entries before `_heap_until_ms`."""
        self._heap_until_ms = 0
        self._later: dict[int, list[TimerKey]] = {}
        """The other entries, by the period of their deadline."""
        self._periods: list[int] = []
        """A heap of the keys of `_later`."""
        self._entry_count = 0

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: TimerKey, due_ms: int) -> None:
        self._armed[key] = due_ms
        self._add(key, due_ms)
        if self._entry_count > 2 * len(self._armed) + DEAD_ENTRIES_MAX:
            self._remove_dead_entries()

    def disarm(self, key: TimerKey) -> None:
        self._armed.pop(key, None)

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Disarm and return the next key whose deadline has passed; None if there is none."""
        if now_ms >= self._heap_until_ms:
            self._begin_period(now_ms // PERIOD_MS)
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, key = heappop(heap)
            self._entry_count -= 1
            if self._armed.get(key) == due_ms:
                del self._armed[key]
                return key
        return None

    def _add(self, key: TimerKey, due_ms: int) -> None:
        self._entry_count += 1
        if due_ms < self._heap_until_ms:
            heappush(self._heap, (due_ms, key))
            return
        period = due_ms // PERIOD_MS
        keys = self._later.get(period)
        if keys is None:
            self._later[period] = [key]
            heappush(self._periods, period)
        else:
            keys.append(key)

    def _begin_period(self, present: int) -> None:
        """Move the live entries up to the end of the present period into the heap."""
        self._heap_until_ms = (present + 1) * PERIOD_MS
        moved: list[TimerKey] = []
        while self._periods and self._periods[0] <= present:
            moved += self._later.pop(heappop(self._periods))
        if moved:
            # A timer that was armed again may stand in several lists, and several times in one.
            due = {key: due_ms for key in moved if (due_ms := self._armed.get(key)) is not None}
            entries = [(due_ms, key) for key, due_ms in due.items() if due_ms < self._heap_until_ms]
            self._heap += entries
            heapify(self._heap)
            self._entry_count += len(entries) - len(moved)

    def _remove_dead_entries(self) -> None:
        self._heap, self._later, self._periods, self._entry_count = [], {}, [], 0
        for key, due_ms in self._armed.items():
            self._add(key, due_ms)


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
