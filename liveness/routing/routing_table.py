"""The routing table: which node serves which shard, as far as this process knows. It is a cache: only the owner decides what it serves.

The table is refreshed at intervals from the database or from a node. Changes arrive sooner from nodes that took or released a
shard, and from refusals of former owners. Where two sources disagree, the higher epoch is right, except that a read of the
database is right about everything that was reported before it began: a wrong report does not last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from liveness.clock import Clock, wait_for_event


class Member(NamedTuple):
    """A node that is alive."""

    node_id: str
    address: str
    leaving: bool = False


class Owner(NamedTuple):
    node_id: str
    address: str
    epoch: int


class RoutingTable:
    def __init__(self, shard_count: int) -> None:
        """`shard_count`: 0 if it is not known yet."""
        self.shard_count = shard_count
        self.revision = 1
        """Increases with every change."""
        self._members: dict[str, Member] = {}
        self._owners: list[Owner | None] = [None] * shard_count
        self._epochs = [0] * shard_count
        """The highest epoch known of each shard."""
        self._reported: dict[int, int] = {}
        """The number of the last report about each shard."""
        self.report_count = 0
        """How many reports there were about shards. A reader of the database notes it before it reads."""
        self._change_event = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        """Called synchronously with every change, before the tasks in `wait_for_change` resume."""

    def set_shard_count(self, shard_count: int) -> None:
        """Set the number of shards if it is not known yet. It is fixed when the database is created."""
        if self.shard_count == 0 < shard_count:
            self.shard_count = shard_count
            self._owners = [None] * shard_count
            self._epochs = [0] * shard_count
            self.notify()

    def owner(self, shard_id: int) -> Owner | None:
        """None while no owner is known."""
        return self._owners[shard_id]

    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def owners(self) -> Mapping[int, Owner]:
        return {shard_id: owner for shard_id, owner in enumerate(self._owners) if owner is not None}

    def replace(
        self,
        members: Iterable[Member],
        owners: Mapping[int, tuple[str, int]],
        read_after_report: int | None = None,
    ) -> None:
        """Replace the whole table. `owners`: node and epoch of each owned shard. A shard whose owner is not a member has no
        owner. `read_after_report`: what `report_count` was when the read of the database began; None if it comes from a node,
        which may know less than was reported here before."""
        before = self._members, list(self._owners)
        self._members = {member.node_id: member for member in members}
        for shard_id in range(self.shard_count):
            node_id, epoch = owners.get(shard_id, ("", self._epochs[shard_id]))
            if epoch < self._epochs[shard_id] and (
                read_after_report is None or self._reported.get(shard_id, 0) > read_after_report
            ):
                continue  # the shard's owner has reported a higher epoch since
            member = self._members.get(node_id)
            if epoch != self._epochs[shard_id]:
                self._note_report(shard_id)  # a read that began before this one must not undo it
            self._epochs[shard_id] = epoch
            self._owners[shard_id] = Owner(node_id, member.address, epoch) if member else None
        if before != (self._members, self._owners):
            self.notify()

    def update_owner(self, shard_id: int, owner: Owner) -> bool:
        """Apply a report about one shard. Returns False if the table knew it already or knows a higher epoch."""
        if not 0 <= shard_id < self.shard_count or owner.epoch < self._epochs[shard_id]:
            return False
        if owner == self._owners[shard_id]:
            return False
        self._note_report(shard_id)
        self._epochs[shard_id] = owner.epoch
        self._owners[shard_id] = owner
        self.notify()
        return True

    def clear_owner(self, shard_id: int, node_id: str) -> None:
        """Forget that the node owns the shard, if the table says so."""
        owner = self._owners[shard_id] if 0 <= shard_id < self.shard_count else None
        if owner is not None and owner.node_id == node_id:
            self._owners[shard_id] = None
            self.notify()

    async def wait_for_change(self, clock: Clock, timeout_ms: float) -> None:
        """Return when anything changes, or when the time is over."""
        await wait_for_event(self._change_event, clock, timeout_ms)

    def _note_report(self, shard_id: int) -> None:
        self.report_count += 1
        self._reported[shard_id] = self.report_count

    def notify(self) -> None:
        """Wake all tasks in `wait_for_change`."""
        self.revision += 1
        change, self._change_event = self._change_event, asyncio.Event()
        change.set()
        for callback in self.on_change:
            callback()
