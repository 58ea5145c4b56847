"""Where rescheduled activities go besides our own matching. The seam is `Sink`; one `webhook` ships.

An activity goes to one place: those of a task queue that has a sink are given to it and never to a poll. Until the sink
has taken an activity it is RELEASED, and the task that carries it is retried and finally dead-lettered like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask


class Sink(Protocol):
    async def offer(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        """Hand the activity on. May be called more than once for the same task; raising means: try again later."""


Route = Callable[[str, str], Sink | None]
"""Of a namespace and a task queue: who receives its reschedules; None for our own matching."""


def to_matching(namespace: str, task_queue: str) -> None:
    """The route without sinks."""
