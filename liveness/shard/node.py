"""The shards that this process owns, and their way through start, trouble and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence

import structlog

from liveness.clock import Clock
from liveness.domain.errors import ShardUnavailable, ShuttingDown
from liveness.domain.keys import shard_of
from liveness.domain.policy import Policy
from liveness.shard.committer import Committer, Group
from liveness.shard.deadlines import Deadlines
from liveness.shard.observed_clock import ListeningTime
from liveness.shard.policies import Policies
from liveness.shard.shard import HandedOver, Shard
from liveness.store.api import Store
from liveness.store.errors import StoreBroken, StoreError

logger = structlog.get_logger("liveness.node")

PULSE_MS = 50
CLOCK_WRITTEN_EVERY_MS = 500
"""Half of what the observed clock may run ahead, so that a slow commit does not freeze it."""
STALL_MS = 500
"""A pulse this late means that the process stood still, and that heartbeats may lie unread in its sockets."""
REOPEN_BACKOFF_MS = (50, 200, 1_000, 2_000, 5_000)


class Node:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        shard_count: int,
        owner: str,
        grace_ms: int,
        commit_interval_ms: float,
        deadlines: Callable[[int], Deadlines],
        namespaces: Collection[str] = (),
    ) -> None:
        self.store = store
        self.clock = clock
        self.shard_count = shard_count
        self.policies = Policies({}, namespaces, Policy(token_floor=store.history.token_floor))
        self.broken: asyncio.Future[StoreBroken] = asyncio.get_running_loop().create_future()
        """Done when durability can no longer be promised: the process must end."""
        self.on_pulse: list[Callable[[], None]] = []
        self.on_committed: list[Callable[[Sequence[HandedOver]], None]] = []
        self.on_opened: list[Callable[[Shard], None]] = []
        self.on_policy: list[Callable[[], None]] = []
        self._owner = owner
        self._grace_ms = grace_ms
        self._deadlines = deadlines
        self._shards: list[Shard | None] = [None] * shard_count
        self._dropped_population: dict[int, Counter[str]] = {}
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_pulse_ms = clock.monotonic_ms()
        self._expiries_held_until_ms = 0
        self.listening = ListeningTime(clock)
        self.committer = Committer(
            store,
            clock,
            self.listening,
            interval_ms=commit_interval_ms,
            on_lost=self._on_lost,
            on_committed=self._after_commit,
            on_broken=self._on_broken,
        )

    # -- life

    async def open(self) -> None:
        await self._take_over(range(self.shard_count))

    def start(self, *, pulse: bool = True) -> None:
        """Begin committing and, with `pulse`, looking at the clock by itself."""
        self._spawn(self.committer.run())
        if pulse:
            self._spawn(self._run_pulse())

    def stop_listening(self) -> None:
        """Heartbeats can no longer come in: silence counts against nobody from now on."""
        self.listening.stop()

    async def close(self) -> None:
        """Commit what was decided, checkpoint, stop. Durable replies may still be waiting to leave."""
        self._closing = True
        self.stop_listening()
        if not self.committer.broken:
            await self.checkpoint()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def checkpoint(self) -> None:
        """Shorten the next recovery: fold each shard's renewals into one row. One shard per commit, to stall nobody."""
        for shard in self.shards():
            if shard.durable_seq > shard.checkpoint_seq and self._shards[shard.id] is shard:
                await self.committer.request_checkpoint(shard).wait()

    # -- routing

    def shard(self, namespace: str, name: str) -> Shard:
        return self.shard_by_id(shard_of(namespace, name, self.shard_count))

    def shard_by_id(self, shard_id: int) -> Shard:
        shard = self._shards[shard_id]
        if self._closing:
            raise ShuttingDown
        if shard is None:
            raise ShardUnavailable(shard_id=shard_id)
        return shard

    def table(self) -> Sequence[Shard | None]:
        """Shards by id, None where one is being re-read; for callers that look up many."""
        if self._closing:
            raise ShuttingDown
        return self._shards

    def shards(self) -> list[Shard]:
        """Those that serve."""
        return [shard for shard in self._shards if shard is not None]

    def occupancy(self, namespace: str) -> int:
        """Workers of a namespace. A shard that is being re-read counts as it was, undurable registrations included:
        a quota may refuse one too many meanwhile, but never admits one."""
        return sum(shard.population[namespace] for shard in self._shards if shard is not None) + sum(
            population[namespace] for population in self._dropped_population.values()
        )

    def barrier(self) -> Group:
        return self.committer.barrier()

    async def durable(self, shard: Shard) -> None:
        """Return when everything `shard` shows now is committed, or raise."""
        group = self.barrier()
        await group.wait()
        if group.failed(shard) or self._shards[shard.id] is not shard:
            raise ShardUnavailable(shard_id=shard.id)

    async def settle(self) -> None:
        """Return when everything memory shows now is committed, or raise: for refusals, which rest on all of it."""
        group = self.barrier()
        # What was lost before now is not in memory any more.
        lost_before = group.lost
        await group.wait()
        if lost := group.lost - lost_before:
            raise ShardUnavailable(shard_id=min(lost)[0])

    # -- time

    async def _run_pulse(self) -> None:
        while True:
            await self.clock.sleep(PULSE_MS)
            self.pulse()

    def pulse(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_pulse_ms > STALL_MS:
            logger.warning("stood still", ms=now_ms - self._last_pulse_ms)
            self._expiries_held_until_ms = now_ms + STALL_MS
        self._last_pulse_ms = now_ms
        if now_ms >= self._expiries_held_until_ms:
            for look in self.on_pulse:
                look()
        for shard in self.shards():
            if shard.clock_age_ms() >= CLOCK_WRITTEN_EVERY_MS:
                self.committer.touch(shard)

    # -- trouble

    def _on_lost(self, shard_ids: frozenset[int]) -> None:
        for shard_id in shard_ids:
            shard, self._shards[shard_id] = self._shards[shard_id], None
            if shard is not None:
                self._dropped_population[shard_id] = shard.population
        if not self._closing:
            self._spawn(self._reopen(shard_ids))

    async def _reopen(self, shard_ids: frozenset[int]) -> None:
        for attempt in range(1_000_000):
            try:
                await self._take_over(shard_ids)
            except StoreBroken as error:
                self._on_broken(error)
                return
            except StoreError as error:
                logger.warning("cannot re-read shards", shards=len(shard_ids), why=str(error))
                await self.clock.sleep(REOPEN_BACKOFF_MS[min(attempt, len(REOPEN_BACKOFF_MS) - 1)])
            else:
                logger.info("shards serve again", shards=len(shard_ids))
                return

    async def _take_over(self, shard_ids: Sequence[int] | frozenset[int]) -> None:
        images = await self.store.take_over(shard_ids, self._owner, self.clock.wall_ms())
        self._adopt_config(await self.store.load_config(), shard_ids)
        for image in images:
            shard = Shard(
                image,
                clock=self.clock,
                listening=self.listening,
                shard_count=self.shard_count,
                grace_ms=self._grace_ms,
                deadlines=self._deadlines(image.shard_id),
                on_dirty=self._touch,
            )
            self._shards[image.shard_id] = shard
            self._dropped_population.pop(image.shard_id, None)
            for opened in self.on_opened:
                opened(shard)

    def _adopt_config(self, stored: Mapping[str, Mapping[str, float]], shard_ids: Container[int]) -> None:
        """Settings, too, may have been committed without an answer. Those of other shards may be changing just now,
        and memory knows better about them."""
        for namespace, overrides in stored.items():
            if shard_of(namespace, "", self.shard_count) in shard_ids:
                self.policies.replace(namespace, overrides)
        self.policy_changed()

    def policy_changed(self) -> None:
        """What heartbeats ask for may be granted otherwise now, and workers may be told otherwise."""
        for shard in self.shards():
            shard.forget_forms()
        for look in self.on_policy:
            look()

    def _touch(self, shard: Shard) -> None:
        # Who still holds on to a shard that was dropped must not push aside the one that was re-read.
        if self._shards[shard.id] is shard:
            self.committer.touch(shard)

    def _on_broken(self, error: StoreBroken) -> None:
        self._closing = True
        self.committer.broken = True
        if not self.broken.done():
            self.broken.set_result(error)

    def _after_commit(self, handed: Sequence[HandedOver]) -> None:
        for listen in self.on_committed:
            listen(handed)

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug in the engine room: nothing more can be promised.
            logger.error("engine stopped", exc_info=error)
            self._on_broken(StoreBroken(detail=f"internal error: {error!r}"))
