"""A shard's activities that wait for a worker, and those that workers hold, by task queue.

Updated with every change of an activity, so that nobody has to scan all activities to learn how many wait, and how long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.keys import ActivityKey
from liveness.engine.counts import add_count

QueueName = tuple[str, str]
"""A namespace, and the name of a task queue."""


class BacklogKey(NamedTuple):
    namespace: str
    task_queue: str
    activity_type: str


class Backlog:
    __slots__ = ("available", "available_counts", "held", "waiting")

    def __init__(self, activities: Iterable[tuple[ActivityKey, Activity]]) -> None:
        self.available: dict[BacklogKey, dict[ActivityKey, int]] = {}
        """AVAILABLE activities, and since when on the shard's clock, oldest first. No entry is empty."""
        self.available_counts: Counter[str] = Counter()
        """AVAILABLE activities per namespace."""
        self.held: Counter[QueueName] = Counter()
        """STARTED activities."""
        self.waiting: Counter[QueueName] = Counter()
        """WAITING activities: for a delay, a start, or the back-off of a retry."""
        for key, activity in sorted(activities, key=lambda item: item[1].since_ms):
            self._add(key, activity)

    def record_change(self, key: ActivityKey, before: Activity | None, after: Activity) -> None:
        if before is not None:
            self._remove(key, before)
        self._add(key, after)

    def _add(self, key: ActivityKey, activity: Activity) -> None:
        if activity.state is ActivityState.AVAILABLE:
            self.available.setdefault(_backlog_key(key, activity), {})[key] = available_since_ms(activity)
            self.available_counts[key.namespace] += 1
        elif activity.state is ActivityState.STARTED:
            self.held[key.namespace, activity.task_queue] += 1
        elif activity.state is ActivityState.WAITING:
            self.waiting[key.namespace, activity.task_queue] += 1

    def _remove(self, key: ActivityKey, activity: Activity) -> None:
        if activity.state is ActivityState.AVAILABLE:
            backlog_key = _backlog_key(key, activity)
            waiting = self.available[backlog_key]
            del waiting[key]
            if not waiting:
                del self.available[backlog_key]
            add_count(self.available_counts, key.namespace, -1)
        elif activity.state is ActivityState.STARTED:
            add_count(self.held, (key.namespace, activity.task_queue), -1)
        elif activity.state is ActivityState.WAITING:
            add_count(self.waiting, (key.namespace, activity.task_queue), -1)


def available_since_ms(activity: Activity) -> int:
    """When an AVAILABLE activity began to wait for a worker, on its shard's clock."""
    return activity.since_ms


def _backlog_key(key: ActivityKey, activity: Activity) -> BacklogKey:
    return BacklogKey(key.namespace, activity.task_queue, activity.type)
