"""Receivers of rescheduled activities besides our own matching. `Sink` is the interface; a webhook and a relay implement
it.

An activity goes to one receiver: a task queue that has a sink gives its activities to the sink and never to a poll. Until
the sink has taken an activity, it is RELEASED, and its task is retried and finally dead-lettered like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask

WILDCARD = "*"
DELIVERIES_MAX = 64
"""How many deliveries to one sink run at a time, unless the sink has a `deliveries_max` of its own."""


class SinkDown(Exception):
    """The sink accepts nothing at present, whatever it is given. The message says why."""


class Sink(Protocol):
    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        """Take the activity over. May be called more than once for the same task. If it raises, the task is retried
        later; that counts as an attempt, except with `SinkDown`."""


def deliveries_max(sink: Sink | None) -> int:
    return getattr(sink, "deliveries_max", DELIVERIES_MAX)


SinkSelector = Callable[[str, str], Sink | None]
"""Maps a namespace and a task queue to the sink that receives its reschedules; None for our own matching."""


def no_sink(namespace: str, task_queue: str) -> None:
    """Select our own matching for every task queue."""


def first_match(*selectors: SinkSelector) -> SinkSelector:
    """Return a selector that asks each of these in turn."""

    def select(namespace: str, task_queue: str) -> Sink | None:
        for selector in selectors:
            if (sink := selector(namespace, task_queue)) is not None:
                return sink
        return None

    return select


def queue_matcher(queues: Iterable[str]) -> Callable[[str, str], bool]:
    """Return a predicate. `queues`: NAMESPACE/TASK_QUEUE each, where a part that is * matches anything."""
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
