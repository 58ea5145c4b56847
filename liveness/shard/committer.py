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
from typing import Protocol

import structlog

from liveness.clock import Clock, stopwatch
from liveness.shard.observed_clock import ListeningTime
from liveness.shard.shard import HandedOver, Shard
from liveness.shard.stalls import STALL_MS, Stalls
from liveness.store.api import Store
from liveness.store.errors import CommitRejected, CommitUnknown, ShardsLost, StoreBroken

logger = structlog.get_logger("liveness.commit")


GATHER_MS = 1
LATE_MS = 1
"""A timer that is later than this says that the event loop is busy."""

Tenure = tuple[int, int]
"""A shard's id and the epoch under which it was held."""


class Follower(Protocol):
    """Of a call that waits for a commit and is followed."""

    def began(self, number: int, shards: int) -> None: ...

    def ended(self, *, lost: bool) -> None: ...


Follow = Callable[[], Follower | None]
"""Asked in the context of the call that waits; most are not followed."""


class Group:
    """Those who wait for one commit."""

    __slots__ = ("_begun", "_follow", "_followers", "_lost", "_waiters", "done")

    def __init__(self, follow: Follow | None = None) -> None:
        self.done = False
        self._lost: set[Tenure] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._follow = follow
        self._followers: list[Follower] = []
        self._begun: tuple[int, int] | None = None

    async def wait(self) -> None:
        if not self.done:
            # One future each: a caller that goes away cancels its own.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self._follow is not None and (follower := self._follow()) is not None:
                self._followers.append(follower)
                if self._begun is not None:
                    follower.began(*self._begun)
            await waiter

    def begin(self, number: int, shards: int) -> None:
        """Its commit does."""
        self._begun = number, shards
        for follower in self._followers:
            follower.began(number, shards)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def failed(self, shard: Shard) -> bool:
        """After `wait`: was what this shard decided lost? The same shard re-read since is another tenure."""
        return (shard.id, shard.epoch) in self._lost

    @property
    def lost(self) -> frozenset[Tenure]:
        return frozenset(self._lost)

    def fail(self, tenures: Iterable[Tenure]) -> None:
        self._lost.update(tenures)

    def finish(self) -> None:
        self.done = True
        for follower in self._followers:
            follower.ended(lost=bool(self._lost))
        self._followers.clear()
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
        listening: ListeningTime,
        stalls: Stalls,
        *,
        interval_ms: float,
        on_lost: Callable[[Sequence[Shard], bool], None],
        on_committed: Callable[[Sequence[HandedOver]], None],
        on_broken: Callable[[StoreBroken], None],
        follow: Follow | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listening = listening
        self._stalls = stalls
        self._interval_ms = interval_ms
        self._on_lost = on_lost
        self._on_committed = on_committed
        self._on_broken = on_broken
        self._wake = asyncio.Event()
        self._dirty: dict[int, Shard] = {}
        self._checkpoints: set[int] = set()
        self._releases: set[int] = set()
        self._follow = follow
        self._open = Group(follow)
        self._in_flight: Group | None = None
        self.commits = 0
        """How many have begun."""
        self._last_start_ms = clock.monotonic_ms()
        self.took_s = 0.0
        """How long the last commit that succeeded took."""
        self.broken = False

    def touch(self, shard: Shard) -> None:
        """The shard has something to commit."""
        self._dirty[shard.id] = shard
        self._wake.set()

    def request_checkpoint(self, shard: Shard) -> Group:
        self._checkpoints.add(shard.id)
        self.touch(shard)
        return self._open

    def request_release(self, shard: Shard) -> Group:
        """Its last commit, with a checkpoint for whoever takes it next."""
        self._releases.add(shard.id)
        return self.request_checkpoint(shard)

    def barrier(self) -> Group:
        """The group after which everything that memory shows now is durable."""
        if self._dirty:
            return self._open
        return self._in_flight or _NOTHING_TO_WAIT_FOR

    async def run(self) -> None:
        while not self.broken:
            await self._wake.wait()
            await self._gather()
            await self.commit_open()

    async def _gather(self) -> None:
        """Let more calls join while the event loop has its hands full, for so long at most: a commit costs nearly the
        same for one heartbeat as for fifty. When the loop is idle, waiting would only delay the answers."""
        latest_ms = self._last_start_ms + self._interval_ms
        now_ms = self._clock.monotonic_ms()
        while self._open.waiting > 1 and now_ms < latest_ms:
            await self._clock.sleep(GATHER_MS)
            before_ms, now_ms = now_ms, self._clock.monotonic_ms()
            if now_ms - before_ms < GATHER_MS + LATE_MS:
                return  # the timer was on time: there is nothing else to do

    async def commit_open(self) -> None:
        self._wake.clear()
        self._last_start_ms = self._clock.monotonic_ms()
        group, self._open = self._open, Group(self._follow)
        listening_ms, wall_ms = self._listening.now_ms(), self._clock.wall_ms()
        handed = [
            shard.hand_over(
                listening_ms,
                wall_ms,
                checkpoint=shard.id in self._checkpoints,
                release=shard.id in self._releases,
            )
            for shard in self._dirty.values()
        ]
        self._checkpoints.difference_update(self._dirty)
        self._releases.difference_update(self._dirty)
        self._dirty = {}
        self._in_flight = group
        self.commits += 1
        group.begin(self.commits, len(handed))
        self._listening.commit_began()
        try:
            await self._commit(handed)
        except BaseException:
            # Nobody knows what became of the commit, so nobody who waits for it may be told that it took place.
            self.broken = True
            raise
        finally:
            self._listening.commit_ended()
            if (took_ms := self._clock.monotonic_ms() - self._last_start_ms) > STALL_MS:
                self._stalls.add(self._clock.wall_ms(), took_ms)
            self._in_flight = None
            if not self.broken:
                group.finish()
        if self._dirty:
            self._wake.set()

    async def _commit(self, handed: list[HandedOver]) -> None:
        while handed:
            seconds = stopwatch()
            try:
                await self._store.commit([part.commit for part in handed])
            except ShardsLost as error:
                lost = [part.shard for part in handed if part.shard.id in error.shard_ids]
                handed = [part for part in handed if part.shard.id not in error.shard_ids]
                self._lose(lost, str(error), theirs=True)
            except (CommitRejected, CommitUnknown) as error:
                self._lose([part.shard for part in handed], str(error))
                return
            except StoreBroken as error:
                # Nobody who waits gets an answer from here on: their connections end with the process.
                self.broken = True
                self._on_broken(error)
                return
            else:
                self.took_s = seconds()
                for part in handed:
                    part.shard.committed(part)
                self._on_committed(handed)
                return

    def _lose(self, lost: Sequence[Shard], why: str, *, theirs: bool = False) -> None:
        """Forget what these shards decided; whoever waits for it is told. `theirs`: they have another owner."""
        logger.warning("shards dropped", shards=len(lost), why=why)
        tenures = [(shard.id, shard.epoch) for shard in lost]
        for shard_id, _ in tenures:
            self._dirty.pop(shard_id, None)
        self._open.fail(tenures)
        if self._in_flight is not None:
            self._in_flight.fail(tenures)
        self._on_lost(lost, theirs)
