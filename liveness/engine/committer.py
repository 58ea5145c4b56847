"""Group commit: one transaction at a time commits everything that all shards decided since the last one.

Replies, refusals and reads that rest on undurable state wait for the group that makes it durable: no commit, no OK. The
failures of a commit have these meanings:

    ShardsLost       nothing was committed; another owner has those shards now, the rest is committed without them
    CommitRejected   nothing was committed; the shards are read again
    CommitUnknown    maybe committed; reading the shards again under a higher epoch tells
    StoreBroken      nothing is acknowledged any more; the process ends

A commit may also hang, while the database is out of reach. A node whose own lease is over does not wait for it (`abandon`):
the shards' next owner finds out what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from liveness.clock import Clock, stopwatch
from liveness.diagnostics.stalls import STALL_MS, Stalls
from liveness.engine.observed_clock import ListeningTime
from liveness.engine.shard import PreparedCommit, Shard
from liveness.store.api import Store
from liveness.store.errors import CommitRejected, CommitUnknown, ShardsLost, StoreBroken, StoreError

logger = structlog.get_logger("liveness.commit")


GATHER_STEP_MS = 1
BUSY_LOOP_DELAY_MS = 1
"""A timer that is late by more than this shows that the event loop is busy."""

GROUP_US_MAX = 40_000
"""The estimated processor time of the decisions in one group, in microseconds."""

ShardEpoch = tuple[int, int]
"""A shard's id and the epoch under which it was held."""


class CommitObserver(Protocol):
    """Follows a commit for the trace of one call that waits for it."""

    def on_commit_started(self, number: int, shards: int) -> None: ...

    def on_commit_ended(self, *, lost: bool) -> None: ...


ObserveCommit = Callable[[], CommitObserver | None]
"""Called in the context of the call that waits. Returns None for calls without a trace, which are most."""


class CommitGroup:
    """The callers that wait for one commit."""

    __slots__ = ("_lost", "_observe_commit", "_observers", "_started", "_waiters", "decided_us", "done")

    def __init__(self, observe_commit: ObserveCommit | None = None) -> None:
        self.done = False
        self.decided_us = 0
        """The estimated processor time that heartbeats took whose decisions this group commits, plain renewals not counted."""
        self._lost: set[ShardEpoch] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._observe_commit = observe_commit
        self._observers: list[CommitObserver] = []
        self._started: tuple[int, int] | None = None

    async def wait(self) -> None:
        if not self.done:
            # One future per caller: a caller that is cancelled cancels only its own.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self._observe_commit is not None and (observer := self._observe_commit()) is not None:
                self._observers.append(observer)
                if self._started is not None:
                    observer.on_commit_started(*self._started)
            await waiter

    def mark_started(self, number: int, shards: int) -> None:
        """Mark the commit as started; callers that follow a trace are told."""
        self._started = number, shards
        for observer in self._observers:
            observer.on_commit_started(number, shards)

    @property
    def waiter_count(self) -> int:
        return len(self._waiters)

    def failed(self, shard: Shard) -> bool:
        """After `wait`: whether the decisions of this shard were lost. A shard that was read again since then is another
        object with a higher epoch, and does not count."""
        return (shard.id, shard.epoch) in self._lost

    @property
    def lost(self) -> frozenset[ShardEpoch]:
        return frozenset(self._lost)

    def mark_lost(self, shard_epochs: Iterable[ShardEpoch]) -> None:
        self._lost.update(shard_epochs)

    def finish(self) -> None:
        self.done = True
        for observer in self._observers:
            observer.on_commit_ended(lost=bool(self._lost))
        self._observers.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class _CommitAbandoned(Exception):
    """The node has given up the shards of this commit while it was in flight."""


_FINISHED_GROUP = CommitGroup()
_FINISHED_GROUP.finish()


class Committer:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        listening: ListeningTime,
        stalls: Stalls,
        *,
        interval_ms: float,
        on_shards_dropped: Callable[[Sequence[Shard], bool], None],
        on_committed: Callable[[Sequence[PreparedCommit]], None],
        on_broken: Callable[[StoreBroken], None],
        observe_commit: ObserveCommit | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listening = listening
        self._stalls = stalls
        self._interval_ms = interval_ms
        self._on_shards_dropped = on_shards_dropped
        self._on_committed = on_committed
        self._on_broken = on_broken
        self._wake = asyncio.Event()
        self._dirty: dict[int, Shard] = {}
        self._checkpoints: set[int] = set()
        self._hand_overs: set[int] = set()
        self._observe_commit = observe_commit
        self._open = CommitGroup(observe_commit)
        self._in_flight: CommitGroup | None = None
        self._in_flight_shards: list[Shard] = []
        self._abandoned_count = 0
        """Rises with each call of `abandon`: a commit that began before has no one to report to."""
        self.commit_count = 0
        """The number of commits that have begun."""
        self._last_start_ms = clock.monotonic_ms()
        self.failures: dict[str, int] = {"lost": 0, "rejected": 0, "unknown": 0}
        """Commits that failed, by kind. After one that found the store broken, the process ends."""
        self.last_commit_s = 0.0
        """How long the last commit that succeeded took."""
        self.broken = False
        self.last_failure: StoreError | None = None
        """Why the last commit failed; None if it succeeded."""

    def mark_dirty(self, shard: Shard) -> None:
        """Include the shard in the next commit."""
        self._dirty[shard.id] = shard
        self._wake.set()

    def request_checkpoint(self, shard: Shard) -> CommitGroup:
        self._checkpoints.add(shard.id)
        self.mark_dirty(shard)
        return self._open

    def request_hand_over(self, shard: Shard) -> CommitGroup:
        """Give up the shard with its last commit, which writes a checkpoint for the next owner."""
        self._hand_overs.add(shard.id)
        return self.request_checkpoint(shard)

    def barrier(self) -> CommitGroup:
        """The group after which everything that memory shows now is durable."""
        if self._dirty:
            return self._open
        return self._in_flight or _FINISHED_GROUP

    def note_decided(self, cost_us: int) -> None:
        """Count decisions towards the group that gathers now. Call it in the same turn of the event loop."""
        if self._dirty:  # refusals alone are not committed
            self._open.decided_us += cost_us

    @property
    def is_full(self) -> bool:
        """Whether the group that gathers has enough. What follows a commit takes one turn of the event loop, so a group must
        not become large, however many callers there are."""
        return self._open.decided_us > GROUP_US_MAX and bool(self._dirty)

    async def wait_for_room(self) -> None:
        """Wait while the group that gathers is full."""
        while self.is_full:
            await self._open.wait()

    def abandon(self, served: Iterable[Shard]) -> bool:
        """Discard what is not committed, and wait no longer for the commit in flight: answer everyone who waits for it.
        `served`: the shards that this node gives up. Returns whether a commit was in flight; then `run` ends with it, and
        must be started again."""
        if self.broken:
            return False
        abandoned = {
            (shard.id, shard.epoch): shard
            for shard in (*served, *self._dirty.values(), *self._in_flight_shards)
        }
        for shard in abandoned.values():
            shard.is_handed_over = False  # the commit that would have handed it over does not count
        self._dirty.clear()
        self._checkpoints.clear()
        self._hand_overs.clear()
        gathering, self._open = self._open, CommitGroup(self._observe_commit)
        gathering.mark_lost(abandoned)
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.mark_lost(abandoned)
            self._abandoned_count += 1
            self._end_commit(in_flight)
        gathering.finish()
        return in_flight is not None

    async def run(self) -> None:
        abandoned_count = self._abandoned_count
        while not self.broken and abandoned_count == self._abandoned_count:
            await self._wake.wait()
            await self._gather()
            await self.commit_open()

    async def _gather(self) -> None:
        """Let more calls join the commit while the event loop is busy, for the commit interval at most: a commit costs
        nearly the same for one heartbeat as for fifty. When the loop is idle, waiting would only delay the answers."""
        latest_ms = self._last_start_ms + self._interval_ms
        now_ms = self._clock.monotonic_ms()
        while self._open.waiter_count > 1 and now_ms < latest_ms:
            await self._clock.sleep(GATHER_STEP_MS)
            before_ms, now_ms = now_ms, self._clock.monotonic_ms()
            if now_ms - before_ms < GATHER_STEP_MS + BUSY_LOOP_DELAY_MS:
                return  # the timer was on time: the loop is idle

    async def commit_open(self) -> None:
        self._wake.clear()
        self._last_start_ms = self._clock.monotonic_ms()
        group, self._open = self._open, CommitGroup(self._observe_commit)
        listening_ms, wall_ms = self._listening.now_ms(), self._clock.wall_ms()
        prepared = [
            shard.prepare_commit(
                listening_ms,
                wall_ms,
                checkpoint=shard.id in self._checkpoints,
                is_hand_over=shard.id in self._hand_overs,
            )
            for shard in self._dirty.values()
        ]
        self._checkpoints.difference_update(self._dirty)
        self._hand_overs.difference_update(self._dirty)
        self._dirty = {}
        self._in_flight, self._in_flight_shards = group, [part.shard for part in prepared]
        self.commit_count += 1
        group.mark_started(self.commit_count, len(prepared))
        self._listening.commit_began()
        abandoned_count = self._abandoned_count
        try:
            await self._commit(prepared, abandoned_count)
        except BaseException:
            # The outcome of the commit is not known, so no caller that waits for it may be told that it took place.
            self.broken = self.broken or abandoned_count == self._abandoned_count
            raise
        finally:
            if abandoned_count == self._abandoned_count:
                self._end_commit(group)
        if self._dirty:
            self._wake.set()

    def _end_commit(self, group: CommitGroup) -> None:
        """Let the callers go on that wait for this commit, unless no outcome may be told."""
        self._listening.commit_ended()
        if (took_ms := self._clock.monotonic_ms() - self._last_start_ms) > STALL_MS:
            self._stalls.add(self._clock.wall_ms(), took_ms)
        self._in_flight, self._in_flight_shards = None, []
        if not self.broken:
            group.finish()

    async def _commit(self, prepared: list[PreparedCommit], abandoned_count: int) -> None:
        while prepared:
            seconds = stopwatch()
            try:
                await self._commit_unless_abandoned(prepared, abandoned_count)
            except _CommitAbandoned:
                return
            except ShardsLost as error:
                self.failures["lost"] += 1
                lost = [part.shard for part in prepared if part.shard.id in error.shard_ids]
                prepared = [part for part in prepared if part.shard.id not in error.shard_ids]
                self._drop_shards(lost, str(error), has_new_owner=True)
            except (CommitRejected, CommitUnknown) as error:
                self.failures["unknown" if isinstance(error, CommitUnknown) else "rejected"] += 1
                self.last_failure = error
                self._drop_shards([part.shard for part in prepared], str(error))
                return
            except StoreBroken as error:
                # No waiting caller gets an answer from here on: their connections end with the process.
                self.broken = True
                self._on_broken(error)
                return
            else:
                self.last_commit_s = seconds()
                self.last_failure = None
                for part in prepared:
                    part.shard.mark_durable(part)
                self._on_committed(prepared)
                return

    async def _commit_unless_abandoned(
        self, prepared: Sequence[PreparedCommit], abandoned_count: int
    ) -> None:
        try:
            await self._store.commit([part.commit for part in prepared])
        except (ShardsLost, CommitRejected, CommitUnknown):
            if abandoned_count == self._abandoned_count:
                raise
        if abandoned_count != self._abandoned_count:
            # The shards are no longer served here, and their callers have been told that the outcome is unknown.
            raise _CommitAbandoned

    def _drop_shards(self, lost: Sequence[Shard], why: str, *, has_new_owner: bool = False) -> None:
        """Discard what these shards decided, and tell the callers that wait for it. `has_new_owner`: another owner has
        taken the shards."""
        logger.warning("shards dropped", shards=len(lost), why=why)
        shard_epochs = [(shard.id, shard.epoch) for shard in lost]
        for shard_id, _ in shard_epochs:
            self._dirty.pop(shard_id, None)
        self._open.mark_lost(shard_epochs)
        if self._in_flight is not None:
            self._in_flight.mark_lost(shard_epochs)
        self._on_shards_dropped(lost, has_new_owner)
