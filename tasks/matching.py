"""Where available activities go. The seam is `Matching`; what ships is an index of them by task queue.

The activities table is the durable side: it holds each available activity, and the index is filled from it whenever a
shard is opened.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.keys import ActivityKey
from liveness.shard.shard import Shard


class Matching(Protocol):
    async def offer(self, key: ActivityKey, activity: Activity) -> None:
        """Make it known that the activity waits for a worker. May be called more than once for the same attempt.
        Raising means: try again later."""


class AvailableActivities:
    """Available activities by namespace and task queue, in the order in which they came."""

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[str, str], dict[ActivityKey, Activity]] = defaultdict(dict)

    async def offer(self, key: ActivityKey, activity: Activity) -> None:
        self._queues[key.namespace, activity.task_queue][key] = activity

    def on_opened(self, shard: Shard) -> None:
        for key, activity in shard.activities.items():
            if activity.state is ActivityState.AVAILABLE:
                self._queues[key.namespace, activity.task_queue][key] = activity

    def waiting(self, namespace: str, task_queue: str) -> list[Activity]:
        return list(self._queues.get((namespace, task_queue), {}).values())
