"""The available activities of one task queue, in the order in which polls are handed them.

Lower priority keys come first. Among activities of one priority, fairness keys take turns by their weights (start-time fair
queueing): an activity gets a tag when it arrives, one step behind the last one of its key, or behind what was handed out last if
its key had none waiting. A heavy key has small steps. Activities of one key, and all of them where nobody uses keys, are in order
of arrival.

A lane is what one type, priority and fairness key have waiting; its tags rise. So any choice of types is a merge of lanes, and
looks at no entry of a type that was not asked for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain, count
from operator import itemgetter
from typing import NamedTuple

from liveness.domain.events import DEFAULT_PRIORITY, Priority
from liveness.domain.keys import ActivityKey

ActivityTypes = frozenset[str] | None
"""The types that a poll is for; None for all."""


class _Lane(NamedTuple):
    priority_key: int
    fairness_key: str


class _Rank(NamedTuple):
    priority_key: int
    tag: float
    number: int
    """Of arrival."""


_PLAIN = _Lane(DEFAULT_PRIORITY.priority_key, DEFAULT_PRIORITY.fairness_key)


class AvailableActivities:
    __slots__ = ("_all", "_by_type", "_last_tags", "_numbers", "_passed", "_ranked_count", "_waiting")

    def __init__(self) -> None:
        self._all: OrderedDict[ActivityKey, tuple[str, _Lane]] = OrderedDict()
        """The type and lane of each activity, in order of arrival. While all are in the plain lane, a poll for all types need
        not merge."""
        # `OrderedDict`s: a plain dict walks over all deleted entries at its front each time it is asked for the first, and a
        # queue is emptied from its front.
        self._by_type: dict[str, dict[_Lane, OrderedDict[ActivityKey, _Rank]]] = {}
        self._numbers = count()
        self._last_tags: dict[_Lane, float] = {}
        """The tag of the last arrival, for lanes that have activities waiting."""
        self._waiting: Counter[_Lane] = Counter()
        self._passed: dict[int, float] = {}
        """The highest tag that was handed out, by priority key."""
        self._ranked_count = 0
        """How many activities are not in the plain lane."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ActivityKey]:
        return iter(self._all)

    def __contains__(self, key: ActivityKey) -> bool:
        return key in self._all

    def add(self, key: ActivityKey, activity_type: str, priority: Priority = DEFAULT_PRIORITY) -> bool:
        """Returns whether it is the first of its type."""
        lane = _Lane(priority.priority_key, priority.fairness_key)
        known = self._all.get(key)
        if known == (activity_type, lane):
            return False
        if known is not None:
            self.discard(key)  # the key was used for another activity before
        is_first = activity_type not in self._by_type
        tag = max(self._passed.get(lane.priority_key, 0.0), self._last_tags.get(lane, 0.0))
        tag = self._last_tags[lane] = tag + 1 / priority.fairness_weight
        self._all[key] = activity_type, lane
        lanes = self._by_type.setdefault(activity_type, {})
        lanes.setdefault(lane, OrderedDict())[key] = _Rank(lane.priority_key, tag, next(self._numbers))
        self._waiting[lane] += 1
        self._ranked_count += lane != _PLAIN
        return is_first

    def discard(self, key: ActivityKey, *, was_handed_out: bool = False) -> None:
        known = self._all.pop(key, None)
        if known is None:
            return
        activity_type, lane = known
        lanes = self._by_type[activity_type]
        rank = lanes[lane].pop(key)
        if not lanes[lane]:
            del lanes[lane]
            if not lanes:
                del self._by_type[activity_type]
        self._ranked_count -= lane != _PLAIN
        self._waiting[lane] -= 1
        if not self._waiting[lane]:
            del self._waiting[lane], self._last_tags[lane]
        if was_handed_out:
            passed = self._passed
            passed[lane.priority_key] = max(passed.get(lane.priority_key, 0.0), rank.tag)

    def type_of(self, key: ActivityKey) -> str:
        return self._all[key][0]

    @property
    def types(self) -> Collection[str]:
        return self._by_type.keys()

    def has_any(self, types: ActivityTypes) -> bool:
        return bool(self._all) and (types is None or not types.isdisjoint(self._by_type.keys()))

    def count(self, types: ActivityTypes) -> int:
        if types is None:
            return len(self._all)
        return sum(len(lane) for lanes in self._lanes_of(types) for lane in lanes.values())

    def in_order(self, types: ActivityTypes) -> Iterator[ActivityKey]:
        """The activities of these types, the next one first. Must not be continued after a change."""
        if types is None and not self._ranked_count:
            return iter(self._all)
        lanes = list(chain.from_iterable(lanes.values() for lanes in self._lanes_of(types)))
        if len(lanes) == 1:
            return iter(lanes[0])
        return map(itemgetter(0), merge(*(lane.items() for lane in lanes), key=itemgetter(1)))

    def _lanes_of(self, types: ActivityTypes) -> list[dict[_Lane, OrderedDict[ActivityKey, _Rank]]]:
        names = self._by_type.keys() if types is None else self._by_type.keys() & types
        return [self._by_type[name] for name in names]
