"""What a shard has beside workers and activities: units of work and schedules."""

from __future__ import annotations

from liveness.domain.schedule import ScheduleKey
from liveness.engine.progress_book import ProgressBook
from liveness.engine.schedule_book import ScheduleBook
from liveness.store.api import ShardSnapshot
from liveness.store.object_rows import SCHEDULE_KIND


class ShardObjects:
    __slots__ = ("progress", "schedules")

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.progress = ProgressBook(snapshot.progress)
        self.schedules = ScheduleBook(
            {
                ScheduleKey(key.namespace, key.name): value
                for key, value in snapshot.objects.items()
                if key.kind == SCHEDULE_KIND
            }
        )
