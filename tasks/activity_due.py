"""ActivityDueTask: make a delayed or failed activity available when its delay is over."""

from __future__ import annotations

from liveness.domain import activity_decider
from liveness.domain.reactions import ActivityDueTask
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome


def make_activity_available(task: ActivityDueTask, shard: Shard) -> TimerOutcome:
    activity = shard.activities[task.activity]
    events = activity_decider.make_available_if_due(activity, shard.now_ms())
    if not events:
        return NotYet(activity.due_ms)
    shard.change_activity(task.activity, events)
    return Done()
