"""The available activities of one task queue, in the order in which polls are handed them.

Lower priority keys come first. Among activities of one priority, fairness keys take turns by their weights (start-time fair
queueing): an activity gets a tag when it arrives, one step behind the last one of its key, or behind what was handed out last if
its key had none waiting. A heavy key has small steps. Activities of one key, and all of them where nobody uses keys, are in order
of arrival.

A lane is what one type, priority and fairness key have waiting; its tags rise. So any choice of types is a merge of lanes. The lanes
are sorted by their first activities: whoever takes a few activities looks at a few lanes, because a client may use as many keys and
types as it has activities.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from heapq import heappop, heappush, merge
from itertools import chain, count
from typing import NamedTuple

from liveness.domain.events import DEFAULT_PRIORITY, Priority
from liveness.domain.keys import ActivityKey

ActivityTypes = frozenset[str] | None
"""The types that a poll is for; None for all."""

CHUNK_MAX = 1_000


class _Lane(NamedTuple):
    activity_type: str
    priority_key: int
    fairness_key: str


class _Rank(NamedTuple):
    priority_key: int
    tag: float
    number: int
    """Of arrival, so that no two ranks are equal."""


class _Head(NamedTuple):
    """The first activity of a lane."""

    rank: _Rank
    lane: _Lane


_Turns = tuple[int, str]
"""A priority key and a fairness key: what takes turns, whatever the types."""
_PLAIN: _Turns = DEFAULT_PRIORITY.priority_key, DEFAULT_PRIORITY.fairness_key


class SortedHeads:
    """The heads of lanes, sorted, in chunks: adding or removing one moves few others, however many there are."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[list[_Head]] = []

    def __iter__(self) -> Iterator[_Head]:
        return chain.from_iterable(self._chunks)

    def add(self, head: _Head) -> None:
        if not self._chunks:
            self._chunks.append([head])
            return
        at = max(bisect_right(self._chunks, head, key=_first) - 1, 0)
        chunk = self._chunks[at]
        insort(chunk, head)
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            self._chunks.insert(at + 1, chunk[half:])
            del chunk[half:]

    def remove(self, head: _Head) -> None:
        at = bisect_right(self._chunks, head, key=_first) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, head)]
        if not chunk:
            del self._chunks[at]


def _first(chunk: list[_Head]) -> _Head:
    return chunk[0]


class _OfType:
    """What is available of one type."""

    __slots__ = ("count", "heads")

    def __init__(self) -> None:
        self.count = 0
        self.heads = SortedHeads()


class AvailableActivities:
    __slots__ = (
        "_all", "_by_type", "_heads", "_lanes", "_last_tags", "_numbers", "_passed", "_ranked_count", "_waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self._all: OrderedDict[ActivityKey, _Lane] = OrderedDict()
        """The lane of each activity, in order of arrival. While all take turns as one, a poll for all types need not merge."""
        # `OrderedDict`s: a plain dict walks over all deleted entries at its front each time it is asked for the first, and a
        # queue is emptied from its front.
        self._lanes: dict[_Lane, OrderedDict[ActivityKey, _Rank]] = {}
        self._by_type: dict[str, _OfType] = {}
        self._heads = SortedHeads()
        """Of all types."""
        self._numbers = count()
        self._last_tags: dict[_Turns, float] = {}
        """The tag of the last arrival, for keys that have activities waiting."""
        self._waiting: Counter[_Turns] = Counter()
        self._passed: dict[int, float] = {}
        """The highest tag that was handed out, by priority key."""
        self._ranked_count = 0
        """How many activities have another priority than the default, or a fairness key."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ActivityKey]:
        return iter(self._all)

    def __contains__(self, key: ActivityKey) -> bool:
        return key in self._all

    def add(self, key: ActivityKey, activity_type: str, priority: Priority = DEFAULT_PRIORITY) -> bool:
        """Returns whether it is the first of its type."""
        lane = _Lane(activity_type, priority.priority_key, priority.fairness_key)
        turns = lane[1:]
        known = self._all.get(key)
        if known == lane:
            return False
        if known is not None:
            self.discard(key)  # the key was used for another activity before
        tag = max(self._passed.get(lane.priority_key, 0.0), self._last_tags.get(turns, 0.0))
        tag = self._last_tags[turns] = tag + 1 / priority.fairness_weight
        rank = _Rank(lane.priority_key, tag, next(self._numbers))
        self._all[key] = lane
        of_type = self._by_type.get(activity_type)
        is_first = of_type is None
        if of_type is None:
            of_type = self._by_type[activity_type] = _OfType()
        activities = self._lanes.get(lane)
        if activities is None:
            activities = self._lanes[lane] = OrderedDict()
            self._add_head(of_type, _Head(rank, lane))
        activities[key] = rank
        of_type.count += 1
        self._waiting[turns] += 1
        self._ranked_count += turns != _PLAIN
        return is_first

    def discard(self, key: ActivityKey, *, was_handed_out: bool = False) -> None:
        lane = self._all.pop(key, None)
        if lane is None:
            return
        activities, of_type, turns = self._lanes[lane], self._by_type[lane.activity_type], lane[1:]
        is_head = next(iter(activities)) == key
        rank = activities.pop(key)
        of_type.count -= 1
        if is_head:
            of_type.heads.remove(_Head(rank, lane))
            self._heads.remove(_Head(rank, lane))
            if activities:
                self._add_head(of_type, _Head(next(iter(activities.values())), lane))
            else:
                del self._lanes[lane]
                if not of_type.count:
                    del self._by_type[lane.activity_type]
        self._ranked_count -= turns != _PLAIN
        self._waiting[turns] -= 1
        if not self._waiting[turns]:
            del self._waiting[turns], self._last_tags[turns]
        if was_handed_out:
            passed = self._passed
            passed[lane.priority_key] = max(passed.get(lane.priority_key, 0.0), rank.tag)

    def _add_head(self, of_type: _OfType, head: _Head) -> None:
        of_type.heads.add(head)
        self._heads.add(head)

    def type_of(self, key: ActivityKey) -> str:
        return self._all[key].activity_type

    @property
    def types(self) -> Collection[str]:
        return self._by_type.keys()

    def has_any(self, types: ActivityTypes) -> bool:
        return bool(self._all) if types is None else bool(self._by_type.keys() & types)

    def count(self, types: ActivityTypes) -> int:
        if types is None:
            return len(self._all)
        return sum(of_type.count for of_type in self._chosen(types))

    def in_order(self, types: ActivityTypes) -> Iterator[ActivityKey]:
        """The activities of these types, the next one first. Must not be continued after a change."""
        if types is None:
            return iter(self._all) if not self._ranked_count else self._merged(self._heads)
        chosen = self._chosen(types)
        return self._merged(chosen[0].heads if len(chosen) == 1 else merge(*(each.heads for each in chosen)))

    def _chosen(self, types: frozenset[str]) -> list[_OfType]:
        return [self._by_type[name] for name in self._by_type.keys() & types]

    def _merged(self, heads: Iterable[_Head]) -> Iterator[ActivityKey]:
        """Looks at a lane when it is the turn of its first activity."""
        following: list[tuple[_Rank, ActivityKey, Iterator[tuple[ActivityKey, _Rank]]]] = []
        """The next activities of the lanes that were looked at, with those behind them."""
        lanes = iter(heads)
        head = next(lanes, None)
        while head is not None or following:
            if head is not None and (not following or head.rank < following[0][0]):
                rest = iter(self._lanes[head.lane].items())
                key, _ = next(rest)
                head = next(lanes, None)
            else:
                _, key, rest = heappop(following)
            yield key
            if (behind := next(rest, None)) is not None:
                heappush(following, (behind[1], behind[0], rest))
