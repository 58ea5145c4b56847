"""A shard's activities in memory: all that are unfinished, and those finished ones that somebody asked about lately.

A finished activity leaves memory some time after it is durable and is read back when it is asked for, so that memory
holds the work at hand and not its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from liveness.domain.activity import FINISHED, Activity, ActivityState, evolve, timer_of
from liveness.domain.activity_decider import Events
from liveness.domain.errors import ActivityNotFound
from liveness.domain.keys import ActivityKey
from liveness.shard.deadlines import Deadlines
from liveness.shard.pending import Pending


class ActivityBook:
    def __init__(self, activities: dict[ActivityKey, Activity], deadlines: Deadlines) -> None:
        self._activities = activities
        self._deadlines = deadlines
        self._finished: dict[ActivityKey, int] = {}
        """In memory though finished, with the sequence of the event that finished it."""
        self.evictions = 0
        """Rises when something leaves memory: what was read from the store before may be older than what left."""
        self.quarantined: Counter[str] = Counter()
        """How many, per namespace."""
        for key, activity in activities.items():
            self._arm(key, activity)
            if activity.state is ActivityState.QUARANTINED:
                self.quarantined[key.namespace] += 1

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
        self, key: ActivityKey, events: Events, pending: Pending, wall_ms: int, now_ms: int
    ) -> Activity | None:
        activity = before = self._activities.get(key)
        for event in events:
            pending.add(
                event, number=None, namespace=key.namespace, worker=None, workflow_id=key.workflow_id,
                wall_ms=wall_ms, observed_ms=now_ms,
            )  # fmt: skip
            activity = evolve(activity, event, key.workflow_id)
        if events and activity is not None:
            self._activities[key] = pending.activities[key] = activity
            self._arm(key, activity)
            self._count(key.namespace, before, activity)
            if activity.state in FINISHED:
                self._finished[key] = pending.last_seq
            else:
                self._finished.pop(key, None)
        return activity

    def _count(self, namespace: str, before: Activity | None, after: Activity) -> None:
        was = before is not None and before.state is ActivityState.QUARANTINED
        change = (after.state is ActivityState.QUARANTINED) - was
        if change:
            self.quarantined[namespace] += change

    def recall(self, key: ActivityKey, activity: Activity) -> None:
        """Back into memory, as the store has it."""
        self._activities[key] = activity
        self._finished[key] = 0

    def evict(self, durable_seq: int) -> int:
        """Let go of what is finished and durable."""
        gone = [key for key, seq in self._finished.items() if seq <= durable_seq]
        for key in gone:
            del self._activities[key], self._finished[key]
        self.evictions += bool(gone)
        return len(gone)

    def _arm(self, key: ActivityKey, activity: Activity) -> None:
        if timer_of(key, activity) is None:
            self._deadlines.disarm(key)
        else:
            self._deadlines.arm(key, activity.due_ms)
