"""ActivityDueTask: make a delayed or failed activity available when its delay is over, or its absolute start has come."""

from __future__ import annotations

from liveness.domain import activity_decider
from liveness.domain.activity import due_look_ms
from liveness.domain.reactions import ActivityDueTask
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome


def make_activity_available(task: ActivityDueTask, shard: Shard) -> TimerOutcome:
    activity, now_ms, wall_ms = shard.activities[task.activity], shard.now_ms(), shard.wall_ms()
    events = activity_decider.make_available_if_due(activity, now_ms, wall_ms)
    if not events:
        return NotYet(due_look_ms(activity, now_ms, wall_ms))
    shard.change_activity(task.activity, events)
    return Done()
