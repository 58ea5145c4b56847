"""ActivityRescheduleTask: an activity's worker is gone; make the activity available to others.

In the shard: cancel requested for the old worker, binding released, available again. Outside: matching is told.
Each step may be repeated after a crash; the release is remembered by (worker, epoch, attempt) and has one effect.
"""

from __future__ import annotations

from liveness.domain.activity import Activity, Release
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.shard.shard import Shard
from tasks.matching import Matching


class ActivityReschedule:
    def __init__(self, matching: Matching) -> None:
        self._matching = matching

    def validate(self, task: ActivityRescheduleTask, shard: Shard) -> bool:
        """Stale once the activity has been taken from a later holder."""
        activity = shard.activities.get(key_of(task))
        release = Release(task.worker, task.epoch, task.activity.attempt)
        return activity is None or release not in activity.releases or release == activity.releases[-1]

    def release(self, task: ActivityRescheduleTask, shard: Shard) -> Activity:
        """Inside the shard; durable with its next commit."""
        return shard.reschedule(task)

    async def hand_on(self, task: ActivityRescheduleTask, activity: Activity) -> None:
        """Outside the shard, once the release is durable."""
        await self._matching.offer(key_of(task), activity)


def key_of(task: ActivityRescheduleTask) -> ActivityKey:
    return ActivityKey(task.namespace, *task.activity.id)
