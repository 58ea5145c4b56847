"""Group commit: one transaction at a time takes up everything that all shards decided since the last.

Replies, refusals and reads that rest on undurable state wait for the group that makes it durable. What each failure
means is settled here:

    ShardsLost       nothing was committed; those shards are another's now, the rest is committed without them
    CommitRejected   nothing was committed; the shards are read again
    CommitUnknown    maybe committed; reading the shards again under a higher epoch tells
    StoreBroken      nobody is acknowledged any more; the process ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from liveness.clock import Clock
from liveness.domain.errors import ShardUnavailable
from liveness.shard.shard import HandedOver, Shard
from liveness.store.api import Store
from liveness.store.errors import CommitRejected, CommitUnknown, ShardsLost, StoreBroken

logger = structlog.get_logger("liveness.commit")


class Group:
    """Those who wait for one commit."""

    __slots__ = ("_failed", "_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._failed: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        if not self.done:
            # One future each: a caller that goes away cancels its own.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def failed(self, shard_id: int) -> bool:
        """After `wait`: was what this shard decided lost?"""
        return shard_id in self._failed

    @property
    def lost_any(self) -> bool:
        return bool(self._failed)

    def check(self) -> None:
        """After `wait`: raise if anything was lost."""
        if self._failed:
            raise ShardUnavailable(shard_id=min(self._failed))

    def fail(self, shard_ids: Iterable[int]) -> None:
        self._failed.update(shard_ids)

    def finish(self) -> None:
        self.done = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


_NOTHING_TO_WAIT_FOR = Group()
_NOTHING_TO_WAIT_FOR.finish()


class Committer:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        interval_ms: float,
        on_lost: Callable[[frozenset[int]], None],
        on_committed: Callable[[Sequence[HandedOver]], None],
        on_broken: Callable[[StoreBroken], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._on_lost = on_lost
        self._on_committed = on_committed
        self._on_broken = on_broken
        self._wake = asyncio.Event()
        self._dirty: dict[int, Shard] = {}
        self._checkpoints: set[int] = set()
        self._open = Group()
        self._in_flight: Group | None = None
        self._last_start_ms = clock.monotonic_ms()
        self.broken = False

    def touch(self, shard: Shard) -> None:
        """The shard has something to commit."""
        self._dirty[shard.id] = shard
        self._wake.set()

    def request_checkpoint(self, shard: Shard) -> Group:
        self._checkpoints.add(shard.id)
        self.touch(shard)
        return self._open

    def barrier(self) -> Group:
        """The group after which everything that memory shows now is durable."""
        if self._dirty:
            return self._open
        return self._in_flight or _NOTHING_TO_WAIT_FOR

    def drop(self, shard_ids: frozenset[int]) -> None:
        """Forget what these shards decided; whoever waits for it is told."""
        for shard_id in shard_ids:
            self._dirty.pop(shard_id, None)
        self._open.fail(shard_ids)
        if self._in_flight is not None:
            self._in_flight.fail(shard_ids)

    async def run(self) -> None:
        while not self.broken:
            await self._wake.wait()
            # Under load, let a little more gather: a commit costs the same for one heartbeat as for fifty.
            wait_ms = self._last_start_ms + self._interval_ms - self._clock.monotonic_ms()
            if wait_ms > 0:
                await self._clock.sleep(wait_ms)
            await self.commit_open()

    async def commit_open(self) -> None:
        self._wake.clear()
        self._last_start_ms = self._clock.monotonic_ms()
        group, self._open = self._open, Group()
        handed = [shard.hand_over(checkpoint=shard.id in self._checkpoints) for shard in self._dirty.values()]
        self._checkpoints.difference_update(self._dirty)
        self._dirty = {}
        self._in_flight = group
        try:
            await self._commit(handed)
        finally:
            self._in_flight = None
            if not self.broken:
                group.finish()
        if self._dirty:
            self._wake.set()

    async def _commit(self, handed: list[HandedOver]) -> None:
        while handed:
            try:
                await self._store.commit([part.commit for part in handed])
            except ShardsLost as error:
                self._lose(error.shard_ids, str(error))
                handed = [part for part in handed if part.shard.id not in error.shard_ids]
            except (CommitRejected, CommitUnknown) as error:
                self._lose(frozenset(part.shard.id for part in handed), str(error))
                return
            except StoreBroken as error:
                # Nobody who waits gets an answer from here on: their connections end with the process.
                self.broken = True
                self._on_broken(error)
                return
            else:
                for part in handed:
                    part.shard.committed(part)
                self._on_committed(handed)
                return

    def _lose(self, shard_ids: frozenset[int], why: str) -> None:
        logger.warning("shards dropped", shards=len(shard_ids), why=why)
        self.drop(shard_ids)
        self._on_lost(shard_ids)
