"""The contents of a task queue by activity type, beside its available activities: waiting polls, and offers of other nodes.

A poll may name the types that its worker can run. Each class here answers in the order of arrival, and looks at no entry
of a type that was not asked for, so that a backlog of one type costs the polls for another type nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from heapq import merge
from itertools import chain, count
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from liveness.dispatch.available_activities import ActivityTypes

Entry = TypeVar("Entry", bound=Hashable)


class Offer(NamedTuple):
    """A node has available activities of this type."""

    namespace: str
    task_queue: str
    activity_type: str


class PollsByTypes(Generic[Entry]):
    """The waiting polls of a queue, in groups: those of one group are for the same types. Within each group, and over any choice of
    groups, they are in order of arrival.

    The groups are `OrderedDict`s: a plain dict walks over all deleted entries at its front each time it is asked for the
    first, and a queue is emptied from its front.
    """

    __slots__ = ("_by_type", "_groups", "_numbers", "_size")

    def __init__(self) -> None:
        self._groups: dict[ActivityTypes, OrderedDict[Entry, int]] = {}
        self._by_type: dict[str, dict[ActivityTypes, None]] = {}
        """The groups that are for a type, so that nobody has to look through all groups for it."""
        self._numbers = count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """In no particular order."""
        return chain.from_iterable(self._groups.values())

    def add(self, types: ActivityTypes, entry: Entry) -> None:
        """Add a poll, at the end of its group unless it is there."""
        group = self._groups.get(types)
        if group is None:
            group = self._groups[types] = OrderedDict()
            for name in types or ():
                self._by_type.setdefault(name, {})[types] = None
        elif entry in group:
            return
        group[entry] = next(self._numbers)
        self._size += 1

    def discard(self, types: ActivityTypes, entry: Entry) -> None:
        group = self._groups.get(types)
        if group is None or group.pop(entry, None) is None:
            return
        self._size -= 1
        if not group:
            del self._groups[types]
            for name in types or ():
                of_type = self._by_type[name]
                del of_type[types]
                if not of_type:
                    del self._by_type[name]

    def groups(self) -> Collection[ActivityTypes]:
        return self._groups.keys()

    def has_any_for(self, activity_type: str) -> bool:
        return activity_type in self._by_type or None in self._groups

    def groups_for(self, activity_types: Collection[str]) -> list[ActivityTypes]:
        """The groups that are for one of these types, or for all."""
        by_type = self._by_type
        fewer, others = sorted((activity_types, by_type.keys()), key=len)
        found: dict[ActivityTypes, None] = {None: None} if activity_types and None in self._groups else {}
        for name in fewer:
            if name in others:
                found |= by_type[name]
        return list(found)

    def group_size(self, types: ActivityTypes) -> int:
        return len(self._groups.get(types, ()))

    def in_order(self, groups: Collection[ActivityTypes]) -> Iterator[Entry]:
        """Must not be continued after a change."""
        chosen = [self._groups[types] for types in groups]
        if len(chosen) == 1:
            return iter(chosen[0])
        return map(itemgetter(0), merge(*(group.items() for group in chosen), key=itemgetter(1)))


class RemoteOffers:
    """The nodes that announced activities, by type. A node of an older version names no types; those are under None."""

    __slots__ = ("_addresses",)

    def __init__(self) -> None:
        self._addresses: dict[str | None, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def add(self, address: str, types: Collection[str]) -> None:
        for name in types or (None,):
            self._addresses.setdefault(name, {})[address] = None

    def first_address(self, types: ActivityTypes) -> str | None:
        """A node that announced activities of one of these types.

        An offer without types is for polls without types only: its node would hand out activities of any type.
        """
        names = self._addresses if types is None else self._matching(types)
        return next((next(iter(self._addresses[name])) for name in names), None)

    def forget(self, address: str, types: ActivityTypes) -> None:
        """The node has no more activities of these types."""
        self._forget_where(lambda known: known == address, self._matching(types))

    def retain(self, addresses: Collection[str]) -> None:
        """Forget all other nodes."""
        self._forget_where(lambda known: known not in addresses, tuple(self._addresses))

    def _matching(self, types: ActivityTypes) -> tuple[str | None, ...]:
        if types is None:
            return tuple(self._addresses)
        if len(types) < len(self._addresses):
            return tuple(sorted(name for name in types if name in self._addresses))
        return tuple(name for name in self._addresses if name is not None and name in types)

    def _forget_where(self, is_gone: Callable[[str], bool], names: Collection[str | None]) -> None:
        for name in names:
            addresses = self._addresses[name]
            for address in [known for known in addresses if is_gone(known)]:
                del addresses[address]
            if not addresses:
                del self._addresses[name]
