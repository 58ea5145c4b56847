"""The schedules of a shard, in memory: all of them, because a namespace has a limited number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from liveness.domain import schedule as schedules
from liveness.domain.events import ScheduleEvent
from liveness.domain.schedule import Schedule, ScheduleKey
from liveness.engine.counts import add_count
from liveness.engine.pending import Pending
from liveness.store.api import ObjectKey
from liveness.store.object_rows import SCHEDULE_KIND

QUEUE_SLACK = 64


class ScheduleBook:
    __slots__ = ("_due", "_queue", "_schedules", "counts", "paused_counts")

    def __init__(self, known: Mapping[ScheduleKey, Schedule]) -> None:
        self._schedules = dict(known)
        self.counts: Counter[str] = Counter(key.namespace for key in known)
        """Schedules per namespace."""
        self.paused_counts: Counter[str] = Counter(
            key.namespace for key, schedule in known.items() if schedule.paused
        )
        self._due = {key: schedule.due_ms for key, schedule in known.items() if schedule.due_ms}
        """When to look at each schedule, by wall time."""
        self._queue = [(due_ms, key) for key, due_ms in self._due.items()]
        """The same as a heap. Entries that are out of date are found when they come to the front."""
        heapify(self._queue)

    def __contains__(self, key: ScheduleKey) -> bool:
        return key in self._schedules

    def __iter__(self) -> Iterator[ScheduleKey]:
        return iter(self._schedules)

    def get(self, key: ScheduleKey) -> Schedule | None:
        return self._schedules.get(key)

    def __getitem__(self, key: ScheduleKey) -> Schedule:
        return schedules.known_schedule(key, self._schedules.get(key))

    def pop_due(self, wall_ms: int) -> ScheduleKey | None:
        """A schedule that is due. It comes again once its next tick is due, or by `look_again`."""
        while self._queue and self._queue[0][0] <= wall_ms:
            due_ms, key = heappop(self._queue)
            if self._due.get(key) == due_ms:
                del self._due[key]
                return key
        return None

    def look_again(self, key: ScheduleKey) -> None:
        """Not everything was decided about a schedule that was due."""
        if (schedule := self._schedules.get(key)) is not None:
            self._wait_for(key, schedule.due_ms)

    def _wait_for(self, key: ScheduleKey, due_ms: int) -> None:
        if not due_ms:
            self._due.pop(key, None)
        elif self._due.get(key) != due_ms:
            self._due[key] = due_ms
            heappush(self._queue, (due_ms, key))
            if len(self._queue) > 2 * len(self._due) + QUEUE_SLACK:
                self._queue = [(due_ms, key) for key, due_ms in self._due.items()]
                heapify(self._queue)

    def apply(
        self, key: ScheduleKey, event: ScheduleEvent, pending: Pending, wall_ms: int, now_ms: int
    ) -> Schedule | None:
        pending.add(
            event,
            number=None,
            namespace=key.namespace,
            worker=None,
            workflow_id=None,
            wall_ms=wall_ms,
            observed_ms=now_ms,
        )
        before = self._schedules.get(key)
        after = schedules.evolve(before, event, wall_ms)
        pending.objects[ObjectKey(key.namespace, SCHEDULE_KIND, key.schedule_id)] = after
        add_count(self.counts, key.namespace, (after is not None) - (before is not None))
        add_count(self.paused_counts, key.namespace, _is_paused(after) - _is_paused(before))
        if after is None:
            del self._schedules[key]
            self._due.pop(key, None)
            return None
        self._schedules[key] = after
        self._wait_for(key, after.due_ms)
        return after


def _is_paused(schedule: Schedule | None) -> bool:
    return schedule is not None and schedule.paused
