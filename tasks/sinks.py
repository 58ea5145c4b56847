"""Where rescheduled activities go besides our own matching. The seam is `Sink`; a webhook and a relay ship.

An activity goes to one place: those of a task queue that has a sink are given to it and never to a poll. Until the sink
has taken an activity it is RELEASED, and the task that carries it is retried and finally dead-lettered like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask

WILDCARD = "*"
DELIVERIES_MAX = 64
"""To one sink at a time, unless it has a `deliveries_max` of its own."""


class SinkDown(Exception):
    """The sink takes nothing from anybody now. Says why; nothing is wrong with what it was offered."""


class Sink(Protocol):
    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        """Hand the activity on. May be called more than once for the same task. Raising means: try again later, which
        counts as a try, unless it is `SinkDown`, which does not."""


def deliveries_max(sink: Sink | None) -> int:
    return getattr(sink, "deliveries_max", DELIVERIES_MAX)


SinkSelector = Callable[[str, str], Sink | None]
"""Of a namespace and a task queue: who receives its reschedules; None for our own matching."""


def no_sink(namespace: str, task_queue: str) -> None:
    """The route without sinks."""


def first_match(*selectors: SinkSelector) -> SinkSelector:
    """Each is asked in turn."""

    def select(namespace: str, task_queue: str) -> Sink | None:
        for selector in selectors:
            if (sink := selector(namespace, task_queue)) is not None:
                return sink
        return None

    return select


def queue_matcher(queues: Iterable[str]) -> Callable[[str, str], bool]:
    """`queues`: NAMESPACE/TASK_QUEUE each, where * alone stands for any."""
    chosen = {queue.partition("/")[::2] for queue in queues}

    def matches(namespace: str, task_queue: str) -> bool:
        wanted = {
            (namespace, task_queue),
            (namespace, WILDCARD),
            (WILDCARD, task_queue),
            (WILDCARD, WILDCARD),
        }
        return not wanted.isdisjoint(chosen)

    return matches
