"""The contents of a task queue by activity type, beside its available activities: waiting polls, and offers of other nodes.

A poll may name the types that its worker can run. Each class here answers in the order of arrival, and looks at no entry
of a type that was not asked for, so that a backlog of one type costs the polls for another type nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from heapq import merge
from itertools import count
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from liveness.dispatch.available_activities import ActivityTypes

Entry = TypeVar("Entry", bound=Hashable)
GroupName = TypeVar("GroupName", bound=Hashable)


class Offer(NamedTuple):
    """A node has available activities of this type."""

    namespace: str
    task_queue: str
    activity_type: str


class GroupedEntries(Generic[GroupName, Entry]):
    """Entries in groups. Within each group, and over any choice of groups, they are in order of arrival.

    The groups are `OrderedDict`s: a plain dict walks over all deleted entries at its front each time it is asked for the
    first, and a queue is emptied from its front.
    """

    __slots__ = ("_groups", "_numbers", "_size")

    def __init__(self) -> None:
        self._groups: dict[GroupName, OrderedDict[Entry, int]] = {}
        self._numbers = count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, group_name: GroupName, entry: Entry) -> bool:
        """Add an entry, at the end of its group unless it is there. Returns whether the group was empty."""
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups[group_name] = OrderedDict()
        elif entry in group:
            return False
        group[entry] = next(self._numbers)
        self._size += 1
        return len(group) == 1

    def discard(self, group_name: GroupName, entry: Entry) -> None:
        group = self._groups.get(group_name)
        if group is not None and group.pop(entry, None) is not None:
            self._size -= 1
            if not group:
                del self._groups[group_name]

    def group_names(self) -> Collection[GroupName]:
        return self._groups.keys()

    def group_size(self, group_name: GroupName) -> int:
        return len(self._groups.get(group_name, ()))

    def in_order(self, group_names: Collection[GroupName]) -> Iterator[Entry]:
        """Must not be continued after a change."""
        groups = [self._groups[name] for name in group_names]
        if len(groups) == 1:
            return iter(groups[0])
        return map(itemgetter(0), merge(*(group.items() for group in groups), key=itemgetter(1)))


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
        for name in self._matching(types):
            return next(iter(self._addresses[name]))
        return None

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
