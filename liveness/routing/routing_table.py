"""Who serves which shard, as far as is known here. A cache: the owner itself has the last word, and says who it is.

What is known comes from looking at the database or asking a node now and then, and, sooner, from those who took or let
go of a shard and from the refusals of former owners. Where two say different things, the higher epoch is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from liveness.clock import Clock, wait_for_event


class Member(NamedTuple):
    """A node that lives."""

    node_id: str
    address: str
    leaving: bool = False


class Owner(NamedTuple):
    node_id: str
    address: str
    epoch: int


class RoutingTable:
    def __init__(self, shard_count: int) -> None:
        """0: not known yet."""
        self.shard_count = shard_count
        self.revision = 1
        """Rises with every change."""
        self._members: dict[str, Member] = {}
        self._owners: list[Owner | None] = [None] * shard_count
        self._epochs = [0] * shard_count
        """The highest under which each shard was ever known to be owned."""
        self._change_event = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        """Called at once with every change, before anybody who waits for one goes on."""

    def set_shard_count(self, shard_count: int) -> None:
        """Who begins with 0 shards learns with the first look at a node how many there are. It never changes then."""
        if self.shard_count == 0 < shard_count:
            self.shard_count = shard_count
            self._owners = [None] * shard_count
            self._epochs = [0] * shard_count
            self._notify()

    def owner(self, shard_id: int) -> Owner | None:
        """None while nobody is known to serve it."""
        return self._owners[shard_id]

    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def owners(self) -> Mapping[int, Owner]:
        return {shard_id: owner for shard_id, owner in enumerate(self._owners) if owner is not None}

    def replace(self, members: Iterable[Member], owners: Mapping[int, tuple[str, int]]) -> None:
        """A fresh look at everything: who lives, and of each owned shard its node and epoch. Owners that do not live
        serve nobody."""
        before = self._members, list(self._owners)
        self._members = {member.node_id: member for member in members}
        for shard_id in range(self.shard_count):
            node_id, epoch = owners.get(shard_id, ("", self._epochs[shard_id]))
            if epoch < self._epochs[shard_id]:
                continue  # older than what the owner itself has said since
            member = self._members.get(node_id)
            self._epochs[shard_id] = epoch
            self._owners[shard_id] = Owner(node_id, member.address, epoch) if member else None
        if before != (self._members, self._owners):
            self._notify()

    def update_owner(self, shard_id: int, owner: Owner) -> bool:
        """Somebody said who owns a shard. False if that was known, or is older than what is known."""
        if not 0 <= shard_id < self.shard_count or owner.epoch < self._epochs[shard_id]:
            return False
        if owner == self._owners[shard_id]:
            return False
        self._epochs[shard_id] = owner.epoch
        self._owners[shard_id] = owner
        self._notify()
        return True

    def clear_owner(self, shard_id: int, node_id: str) -> None:
        """The node does not serve it any more, and who does is not known."""
        owner = self._owners[shard_id]
        if owner is not None and owner.node_id == node_id:
            self._owners[shard_id] = None
            self._notify()

    async def wait_for_change(self, clock: Clock, timeout_ms: float) -> None:
        """Return when anything changes, or when the time is over."""
        await wait_for_event(self._change_event, clock, timeout_ms)

    def _notify(self) -> None:
        self.revision += 1
        change, self._change_event = self._change_event, asyncio.Event()
        change.set()
        for callback in self.on_change:
            callback()
