"""What a shard has beside workers and activities: units of work, schedules and concurrency limits."""

from __future__ import annotations

from liveness.domain.concurrency import ConcurrencyLimit, LimitKey
from liveness.domain.schedule import Schedule, ScheduleKey
from liveness.engine.concurrency_book import ConcurrencyBook
from liveness.engine.progress_book import ProgressBook
from liveness.engine.schedule_book import ScheduleBook
from liveness.store.api import ShardSnapshot


class ShardObjects:
    __slots__ = ("limits", "progress", "schedules")

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.limits = ConcurrencyBook(
            {
                LimitKey(key.namespace, key.name): value
                for key, value in snapshot.objects.items()
                if isinstance(value, ConcurrencyLimit)
            },
            snapshot.activities.items(),
        )
        self.progress = ProgressBook(snapshot.progress)
        self.schedules = ScheduleBook(
            {
                ScheduleKey(key.namespace, key.name): value
                for key, value in snapshot.objects.items()
                if isinstance(value, Schedule)
            }
        )
