"""A shard's activities in memory: all unfinished ones, and the finished ones that were used lately.

A finished activity leaves memory some time after it is durable and is read back when a call needs it, so that memory
holds the current work and not its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from liveness.domain.activity import (
    FINISHED_ACTIVITY_STATES,
    Activity,
    ActivityState,
    activity_timer_ms,
    evolve_all,
)
from liveness.domain.activity_decider import ActivityEvents
from liveness.domain.errors import ActivityNotFound
from liveness.domain.events import ActivityHeartbeatRecorded
from liveness.domain.keys import ActivityKey
from liveness.engine.backlog import Backlog
from liveness.engine.open_activities import OpenActivities
from liveness.engine.pending import Pending
from liveness.engine.timers import Timers


class ActivityBook:
    def __init__(
        self, activities: dict[ActivityKey, Activity], timers: Timers, now_ms: int, wall_ms: int
    ) -> None:
        """`now_ms` on the shard's clock and `wall_ms` are the same moment."""
        self._activities = activities
        self._timers = timers
        self._finished: dict[ActivityKey, int] = {}
        """Finished activities in memory, with the sequence of the event that finished them."""
        self.eviction_count = 0
        """Rises when activities leave memory: what was read from the store before may be older than what left."""
        self.quarantined: Counter[str] = Counter()
        """Number of quarantined activities per namespace."""
        for key, activity in activities.items():
            self._arm(key, activity, now_ms, wall_ms)
            if activity.state is ActivityState.QUARANTINED:
                self.quarantined[key.namespace] += 1
        self.backlog = Backlog(activities.items())
        self.open = OpenActivities(activities.items())

    def get(self, key: ActivityKey) -> Activity | None:
        return self._activities.get(key)

    def __getitem__(self, key: ActivityKey) -> Activity:
        activity = self._activities.get(key)
        if activity is None:
            raise ActivityNotFound(activity="/".join(key.id), namespace=key.namespace)
        return activity

    def __contains__(self, key: ActivityKey) -> bool:
        return key in self._activities

    def __len__(self) -> int:
        return len(self._activities)

    def values(self) -> Iterator[Activity]:
        yield from self._activities.values()

    def items(self) -> Iterator[tuple[ActivityKey, Activity]]:
        yield from self._activities.items()

    def apply(
        self, key: ActivityKey, events: ActivityEvents, pending: Pending, wall_ms: int, now_ms: int
    ) -> Activity | None:
        activity = before = self._activities.get(key)
        for event in events:
            pending.add(
                event, number=None, namespace=key.namespace, worker=None, workflow_id=key.workflow_id,
                wall_ms=wall_ms, observed_ms=now_ms,
            )  # fmt: skip
        if events and (activity := evolve_all(before, events, key.workflow_id, wall_ms)) is not None:
            self._activities[key] = pending.activities[key] = activity
            if type(events[-1]) is not ActivityHeartbeatRecorded:
                # A heartbeat only moves a limit later: the timer fires early and is armed again, so that it costs nothing here.
                self._arm(key, activity, now_ms, wall_ms)
            self._count_quarantined(key.namespace, before, activity)
            self.backlog.record_change(key, before, activity)
            self.open.record_change(key.namespace, before, activity, pending.last_seq)
            if activity.state in FINISHED_ACTIVITY_STATES:
                self._finished[key] = pending.last_seq
            else:
                self._finished.pop(key, None)
        return activity

    def _count_quarantined(self, namespace: str, before: Activity | None, after: Activity) -> None:
        was_quarantined = before is not None and before.state is ActivityState.QUARANTINED
        change = (after.state is ActivityState.QUARANTINED) - was_quarantined
        if change:
            self.quarantined[namespace] += change

    def load(self, key: ActivityKey, activity: Activity) -> None:
        """Put an activity that was read from the store into memory."""
        self._activities[key] = activity
        self._finished[key] = 0

    def evict(self, durable_seq: int) -> int:
        """Remove activities that are finished and durable. Returns their number."""
        evicted = [key for key, seq in self._finished.items() if seq <= durable_seq]
        for key in evicted:
            del self._activities[key], self._finished[key]
        self.eviction_count += bool(evicted)
        return len(evicted)

    def _arm(self, key: ActivityKey, activity: Activity, now_ms: int, wall_ms: int) -> None:
        due_ms = activity_timer_ms(activity, now_ms, wall_ms)
        if due_ms is None:
            self._timers.disarm(key)
        else:
            self._timers.arm(key, due_ms)
