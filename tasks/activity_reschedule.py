"""ActivityRescheduleTask: an activity's worker is gone; get the activity moving again.

In the shard: cancel requested for the old worker, binding released, available again, whereupon matching finds it. Where
another engine receives the task queue's reschedules, the activity stays released until that engine has taken it. Each
step may be repeated after a crash; the release is remembered by (worker, epoch, attempt) and has one effect.
"""

from __future__ import annotations

from liveness.domain import activity_decider
from liveness.domain.activity import Activity, ActivityState, ReleasedAttempt
from liveness.domain.keys import ActivityKey
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.engine.shard import Shard
from liveness.tasks.sinks import Sink, SinkSelector


class ActivityReschedule:
    def __init__(self, select_sink: SinkSelector) -> None:
        self._select_sink = select_sink

    def validate(self, task: ActivityRescheduleTask, shard: Shard) -> bool:
        """Stale once the activity is finished, held by another, or available again."""
        activity = shard.activities.get(activity_key_of(task))
        return not activity_decider.is_stale_reschedule(activity, task) or self._is_being_delivered(
            task, activity
        )

    def _is_being_delivered(self, task: ActivityRescheduleTask, activity: Activity | None) -> bool:
        """Released by this very task, and no sink has taken it yet."""
        return (
            activity is not None
            and activity.state is ActivityState.RELEASED
            and activity.releases[-1:] == (ReleasedAttempt(task.worker, task.epoch, task.activity.attempt),)
        )

    def release_activity(self, task: ActivityRescheduleTask, shard: Shard, policy: Policy) -> Activity:
        """Inside the shard; durable with its next commit."""
        known = shard.activities.get(activity_key_of(task))
        task_queue = known.task_queue if known is not None and known.is_managed else task.activity.task_queue
        sink = self._select_sink(task.namespace, task_queue)
        activity = shard.reschedule(task, policy, to_other_engine=sink is not None)
        if sink is None and self._is_being_delivered(task, activity):
            # Its sink was taken away since: our own matching is what is left.
            events = activity_decider.cancel_hand_on(activity, shard.now_ms())
            activity = shard.change_activity(activity_key_of(task), events) or activity
        return activity

    def sink(self, task: ActivityRescheduleTask, activity: Activity) -> Sink | None:
        return self._select_sink(task.namespace, activity.task_queue)

    async def deliver(self, task: ActivityRescheduleTask, activity: Activity) -> None:
        """Outside the shard, once the release is durable."""
        sink = self.sink(task, activity)
        if sink is not None and activity.state is ActivityState.RELEASED:
            await sink.deliver(activity_key_of(task), activity, task)

    def mark_delivered(self, task: ActivityRescheduleTask, shard: Shard) -> None:
        """Inside the shard, once it was handed on."""
        activity = shard.activities.get(activity_key_of(task))
        if activity is not None and self._is_being_delivered(task, activity):
            shard.change_activity(activity_key_of(task), activity_decider.hand_on(activity, shard.now_ms()))


def activity_key_of(task: ActivityRescheduleTask) -> ActivityKey:
    return ActivityKey(task.namespace, *task.activity.id)
