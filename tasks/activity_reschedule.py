"""ActivityRescheduleTask: reschedule an activity whose worker is gone.

The shard requests the cancellation at the old worker, releases the binding and makes the activity available, so that
matching finds it. If another engine receives the task queue's reschedules, the activity stays RELEASED until that engine
has taken it. Each step may be repeated after a crash: the activity remembers the release by (worker, epoch, attempt), so
it has one effect.
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

    def _is_being_delivered(self, task: ActivityRescheduleTask, activity: Activity | None) -> bool:
        """Return whether this very task released the activity and no sink has taken it yet."""
        return (
            activity is not None
            and activity.state is ActivityState.RELEASED
            and activity.releases[-1:] == (ReleasedAttempt(task.worker, task.epoch, task.activity.attempt),)
        )

    def release_activity(self, task: ActivityRescheduleTask, shard: Shard, policy: Policy) -> Activity | None:
        """Take the activity from its worker. This is durable with the shard's next commit. Returns None if the task is stale:
        the activity is finished, held by another worker, or available again."""
        key = activity_key_of(task)
        known = shard.activities.get(key)
        if activity_decider.is_stale_reschedule(known, task) and not self._is_being_delivered(task, known):
            return None
        task_queue = known.task_queue if known is not None and known.is_managed else task.activity.task_queue
        sink = self._select_sink(task.namespace, task_queue)
        activity = shard.reschedule(key, task, policy, to_other_engine=sink is not None)
        if sink is None and self._is_being_delivered(task, activity):
            # The sink was removed from the settings meanwhile, so our own matching takes the activity.
            events = activity_decider.cancel_hand_on(activity, shard.now_ms())
            activity = shard.change_activity(key, events) or activity
        return activity

    def sink(self, task: ActivityRescheduleTask, activity: Activity) -> Sink | None:
        return self._select_sink(task.namespace, activity.task_queue)

    async def deliver(self, task: ActivityRescheduleTask, activity: Activity) -> None:
        """Give a released activity to its sink. Called outside the shard, after the release is durable."""
        sink = self.sink(task, activity)
        if sink is not None and activity.state is ActivityState.RELEASED:
            await sink.deliver(activity_key_of(task), activity, task)

    def mark_delivered(self, task: ActivityRescheduleTask, shard: Shard) -> None:
        """Record in the shard that the sink has taken the activity."""
        activity = shard.activities.get(activity_key_of(task))
        if activity is not None and self._is_being_delivered(task, activity):
            shard.change_activity(activity_key_of(task), activity_decider.hand_on(activity, shard.now_ms()))


def activity_key_of(task: ActivityRescheduleTask) -> ActivityKey:
    workflow_id, run_id, activity_id, *_ = task.activity
    return ActivityKey(task.namespace, workflow_id, run_id, activity_id)
