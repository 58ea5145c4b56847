"""ActivityDueTask: a delayed or failed activity's time has come."""

from __future__ import annotations

from liveness.domain import activity_decider
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.reactions import ActivityDueTask
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome


class ActivityDue:
    def validate(self, task: ActivityDueTask, activity: Activity) -> bool:
        return activity.state is ActivityState.WAITING and activity.attempt == task.attempt

    def execute(self, task: ActivityDueTask, shard: Shard) -> TimerOutcome:
        activity = shard.activities[task.activity]
        now_ms = shard.now_ms()
        if now_ms < activity.due_ms:
            return NotYet(activity.due_ms)
        shard.change_activity(task.activity, activity_decider.make_available_if_due(activity, now_ms))
        return Done()
