"""The real store with injected commit failures, and an observer of the actual commits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from liveness.domain.events import ShardTaken
from liveness.store.api import ShardCommit, ShardSnapshot
from liveness.store.codec import LogEntry
from liveness.store.database import Database
from liveness.store.errors import CommitRejected, CommitUnknown, ReadFailed, StoreBroken
from liveness.store.sql import SqlStore


class Fault(Enum):
    NONE = "commits normally"
    REJECTED = "fails before it reaches the database"
    UNKNOWN_LOST = "the answer is lost, and nothing was committed"
    UNKNOWN_DONE = "the answer is lost, but it was committed"
    BROKEN = "the disk fails"
    BUG = "an unexpected error"


class CommitObserver:
    """Receives everything that became durable, in order. Tests derive their expectations from it."""

    def on_take_over(self, snapshot: ShardSnapshot, entry: LogEntry) -> None: ...

    def on_committed(self, commits: Sequence[ShardCommit]) -> None: ...


class FaultyStore(SqlStore):
    def __init__(self, database: Database, observer: CommitObserver | None = None) -> None:
        super().__init__(database)
        self.observer = observer or CommitObserver()
        self.faults: deque[Fault] = deque()
        """The faults of the next commits; without a fault a commit succeeds."""
        self.failed: list[frozenset[int]] = []
        """The shards of each failed commit."""
        self.take_over_faults = 0
        self.lost_take_overs = 0
        """The number of next take-overs that succeed but whose answers are lost."""
        self.commits = 0
        """The number of commits tried so far."""
        self.reached = asyncio.Event()
        """Set when a commit waits at the closed gate."""
        self._gate = asyncio.Event()
        self._gate.set()

    def close_gate(self) -> None:
        """Make commits hang, as with a stalled disk, until `open_gate`."""
        self.reached.clear()
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    async def take_over(
        self,
        shard_ids: Collection[int],
        owner: str,
        wall_ms: int,
        expected_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardSnapshot]:
        if self.take_over_faults:
            self.take_over_faults -= 1
            raise ReadFailed(detail="injected")
        snapshots = await super().take_over(shard_ids, owner, wall_ms, expected_epochs)
        for snapshot in snapshots:
            fact = ShardTaken(epoch=snapshot.epoch, owner=owner)
            entry = LogEntry(snapshot.last_seq, None, None, None, wall_ms, snapshot.observed_ms, fact)
            self.observer.on_take_over(snapshot, entry)
        if self.lost_take_overs:
            self.lost_take_overs -= 1
            raise CommitUnknown(detail="injected")
        return snapshots

    async def commit(self, commits: Sequence[ShardCommit]) -> None:
        self.commits += 1
        if not self._gate.is_set():
            self.reached.set()
            await self._gate.wait()
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is not Fault.NONE:
            self.failed.append(frozenset(commit.shard_id for commit in commits))
        if fault is Fault.REJECTED:
            raise CommitRejected(detail="injected")
        if fault is Fault.UNKNOWN_LOST:
            raise CommitUnknown(detail="injected")
        if fault is Fault.BROKEN:
            raise StoreBroken(detail="injected")
        if fault is Fault.BUG:
            raise RuntimeError("injected")
        await super().commit(commits)
        self.observer.on_committed(commits)
        if fault is Fault.UNKNOWN_DONE:
            raise CommitUnknown(detail="injected")
