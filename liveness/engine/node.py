"""The shards that this process owns, and their way through start, trouble and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import structlog

from liveness.clock import Clock
from liveness.diagnostics.evidence import EvidenceSources
from liveness.diagnostics.stalls import STALL_MS
from liveness.domain.errors import ShardUnavailable, ShuttingDown, Unavailable
from liveness.domain.keys import shard_of
from liveness.domain.policy import Policy
from liveness.engine.census import NamespaceState
from liveness.engine.committer import CommitGroup, Committer, ObserveCommit
from liveness.engine.observed_clock import ListeningTime
from liveness.engine.policies import Policies
from liveness.engine.shard import PreparedCommit, Shard
from liveness.engine.timers import Timers
from liveness.expiry.throttle import ExpiryThrottle
from liveness.store.api import Store
from liveness.store.errors import StoreBroken, StoreError

logger = structlog.get_logger("liveness.node")

TICK_MS = 50
CLOCK_WRITE_INTERVAL_MS = 500
"""Half of what the observed clock may run ahead, so that a slow commit does not freeze it."""
REOPEN_BACKOFF_MS = (50, 200, 1_000, 2_000, 5_000)
NEVER_MS = 2**63
HAND_OVER_BATCH_SIZE = 16
"""So many shards are handed over in one go; the others serve meanwhile."""


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
        timers: Callable[[int], Timers],
        namespaces: Collection[str] = (),
        observe_commit: ObserveCommit | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.shard_count = shard_count
        self.policies = Policies({}, namespaces, Policy(token_floor=store.timeline.token_floor))
        self.broken: asyncio.Future[StoreBroken] = asyncio.get_running_loop().create_future()
        """Done when durability can no longer be promised: the process must end."""
        self.on_tick: list[Callable[[], None]] = []
        self.on_lag: list[Callable[[int], None]] = []
        """Told with each pulse by how many milliseconds it was late: so long had everybody else to wait, too."""
        self.on_stall: list[Callable[[int], None]] = []
        """Told for how many milliseconds the process stood still."""
        self.on_committed: list[Callable[[Sequence[PreparedCommit]], None]] = []
        self.on_opened: list[Callable[[Shard], None]] = []
        self.on_closed: list[Callable[[Shard], None]] = []
        """A shard does not serve here any more: handed over, taken by another, or about to be read again."""
        self.on_policy: list[Callable[[], None]] = []
        self.owner = owner
        self.on_shards_lost: Callable[[Collection[int]], None] | None = None
        """Told of shards that another owner has taken; without it, they are taken back."""
        self.unavailable_reason: Callable[[int], Unavailable] = lambda shard_id: ShardUnavailable(
            shard_id=shard_id
        )
        """Why a shard does not serve here, for those who asked for it."""
        self.owned_until_ms: Callable[[], int] = lambda: NEVER_MS
        """On the monotonic clock: until then, no other node can have taken a shard of this one."""
        self.remote_observed_ms: Mapping[int, int] = {}
        """What the clocks of other nodes' shards showed, some moments ago."""
        self.shards_in_transition: set[int] = set()
        """Shards that are being taken, read again or handed over."""
        self._grace_ms = grace_ms
        self._timers = timers
        self._shards: list[Shard | None] = [None] * shard_count
        self._dropped_population: dict[int, Counter[str]] = {}
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_tick_ms = clock.monotonic_ms()
        self._expiries_held_until_ms = 0
        self.census: Counter[NamespaceState] = Counter()
        """Of all shards that serve here."""
        self.listening = ListeningTime(clock)
        self.throttle = ExpiryThrottle(clock, self.policies.of, self.census)
        self.on_policy.append(self.throttle.policy_changed)
        self.on_closed.append(self.throttle.drop_shard)
        self._evidence_sources = EvidenceSources(clock, shard_count, self.throttle)
        self.recent_deaths, self.stalls = self._evidence_sources.recent_deaths, self._evidence_sources.stalls
        self.committer = Committer(
            store,
            clock,
            self.listening,
            self.stalls,
            interval_ms=commit_interval_ms,
            on_shards_dropped=self._on_shards_dropped,
            on_committed=self._after_commit,
            on_broken=self.abort,
            observe_commit=observe_commit,
        )

    # -- life

    async def open(self, expected_epochs: Mapping[int, int] | None = None) -> list[Shard]:
        """Take shards, those whose epoch is still the one that was seen, or, without that, all. Returns those it got."""
        wanted = (
            range(self.shard_count)
            if expected_epochs is None
            else [id for id in expected_epochs if id not in self.shards_in_transition]
        )
        self.shards_in_transition.update(wanted)
        try:
            return await self._take_over(wanted, expected_epochs)
        finally:
            self.shards_in_transition.difference_update(wanted)

    async def hand_over(self, shard_ids: Iterable[int]) -> list[Shard]:
        """Hand shards over: they serve nobody from now on, and whoever is meant to may take them. Returns those that
        were let go of; the others have another owner already, or must be read again."""
        leaving = [shard for id in shard_ids if (shard := self._shards[id]) is not None]
        released: list[Shard] = []
        for start in range(0, len(leaving), HAND_OVER_BATCH_SIZE):
            released += await self._hand_over_batch(leaving[start : start + HAND_OVER_BATCH_SIZE])
        return released

    async def _hand_over_batch(self, leaving: Sequence[Shard]) -> list[Shard]:
        leaving = [shard for shard in leaving if self._shards[shard.id] is shard]
        ids = [shard.id for shard in leaving]
        self.shards_in_transition.update(ids)
        try:
            for shard in leaving:
                self._close(shard)
                shard.is_handed_over = True
            # One commit for all: nothing else happens between these calls.
            groups = [self.committer.request_hand_over(shard) for shard in leaving]
            for group in groups:
                await group.wait()
            return [shard for shard, group in zip(leaving, groups, strict=True) if not group.failed(shard)]
        finally:
            self.shards_in_transition.difference_update(ids)

    def start(self, *, tick: bool = True) -> None:
        """Begin committing and, with `tick`, looking at the clock by itself."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_tick_ms > STALL_MS:
            # Reading so many workers took its time. That is no stall, but heartbeats may lie unread all the same.
            self._expiries_held_until_ms = now_ms + STALL_MS
        self._last_tick_ms = now_ms
        self._spawn(self.committer.run())
        if tick:
            self._spawn(self._run_ticks())

    def stop_listening(self) -> None:
        """Heartbeats can no longer come in: silence counts against nobody from now on."""
        self.listening.stop()

    async def close(self) -> None:
        """Commit what was decided, let go of all shards, stop. Durable replies may still be waiting to leave."""
        self._closing = True
        self.stop_listening()
        if not self.committer.broken:
            await self.hand_over(range(self.shard_count))
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
            raise self.unavailable_reason(shard_id)
        return shard

    def serves(self, shard_id: int) -> bool:
        return self._shards[shard_id] is not None

    def shard_table(self) -> Sequence[Shard | None]:
        """Shards by id, None where one is being re-read; for callers that look up many."""
        if self._closing:
            raise ShuttingDown
        return self._shards

    def observed_ms(self, shard_id: int) -> int:
        """A shard's time, for telling people; a little behind where another node serves it."""
        shard = self._shards[shard_id]
        return shard.now_ms() if shard is not None else self.remote_observed_ms.get(shard_id, 0)

    def shards(self) -> list[Shard]:
        """Those that serve."""
        return [shard for shard in self._shards if shard is not None]

    def count_workers(self, namespace: str) -> int:
        """Workers of a namespace. A shard that is being re-read counts as it was, undurable registrations included:
        a quota may refuse one too many meanwhile, but never admits one."""
        return sum(shard.population[namespace] for shard in self._shards if shard is not None) + sum(
            population[namespace] for population in self._dropped_population.values()
        )

    def barrier(self) -> CommitGroup:
        """The group after which everything that memory shows now is durable."""
        if self.clock.monotonic_ms() >= self.owned_until_ms():
            # Another node may have taken what memory shows, for instance while this process stood still: a commit
            # of each shard tells.
            for shard in self.shards():
                self.committer.mark_dirty(shard)
        return self.committer.barrier()

    async def wait_durable(self, *shards: Shard) -> None:
        """Return when everything that these shards show now is committed, or raise."""
        group = self.barrier()
        await group.wait()
        for shard in shards:
            if group.failed(shard) or not self.is_intact(shard):
                raise self.unavailable_reason(shard.id)

    def is_intact(self, shard: Shard) -> bool:
        """Whether nothing that this very object decided was lost: it serves still, or was handed over whole."""
        return self._shards[shard.id] is shard or shard.is_handed_over

    async def wait_all_durable(self) -> None:
        """Return when everything memory shows now is committed, or raise: for refusals, which rest on all of it."""
        group = self.barrier()
        # What was lost before now is not in memory any more.
        lost_before = group.lost
        await group.wait()
        if lost := group.lost - lost_before:
            raise ShardUnavailable(shard_id=min(lost)[0])

    # -- time

    async def _run_ticks(self) -> None:
        while True:
            due_ms = self.clock.monotonic_ms() + TICK_MS
            await self.clock.sleep(TICK_MS)
            lag_ms = max(0, self.clock.monotonic_ms() - due_ms)
            for on_lag_callback in self.on_lag:
                on_lag_callback(lag_ms)
            self.tick()

    def tick(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_tick_ms > STALL_MS:
            # Heartbeats may lie unread in its sockets.
            stall_ms = now_ms - self._last_tick_ms
            logger.warning("stood still", ms=stall_ms)
            self.stalls.add(self.clock.wall_ms(), stall_ms)
            self._expiries_held_until_ms = now_ms + STALL_MS
            for on_stall_callback in self.on_stall:
                on_stall_callback(stall_ms)
        self._last_tick_ms = now_ms
        if now_ms >= self._expiries_held_until_ms:
            for callback in self.on_tick:
                callback()
        for shard in self.shards():
            if shard.clock_age_ms() >= CLOCK_WRITE_INTERVAL_MS:
                self.committer.mark_dirty(shard)

    # -- trouble

    def _on_shards_dropped(self, lost: Sequence[Shard], has_new_owner: bool) -> None:
        """Shards whose commit failed. `has_new_owner`: because they have another owner."""
        for shard in lost:
            if self._shards[shard.id] is shard:
                self._dropped_population[shard.id] = shard.population
                self._close(shard)
            shard.is_handed_over = False  # what it was to hand over is lost
        if self._closing:
            return
        if has_new_owner and self.on_shards_lost is not None:
            self.on_shards_lost([shard.id for shard in lost])
            return
        ids = [shard.id for shard in lost]
        self.shards_in_transition.update(ids)
        is_single_node = self.on_shards_lost is None
        self._spawn(self._reopen(ids, None if is_single_node else {shard.id: shard.epoch for shard in lost}))

    async def _reopen(self, shard_ids: Sequence[int], expected_epochs: Mapping[int, int] | None) -> None:
        taken: list[Shard] = []
        try:
            for attempt in range(1_000_000):
                try:
                    taken = await self._take_over(shard_ids, expected_epochs)
                except StoreBroken as error:
                    self.abort(error)
                    return
                except StoreError as error:
                    logger.warning("cannot re-read shards", shards=len(shard_ids), why=str(error))
                    await self.clock.sleep(REOPEN_BACKOFF_MS[min(attempt, len(REOPEN_BACKOFF_MS) - 1)])
                else:
                    logger.info("shards serve again", shards=len(taken))
                    break
        finally:
            self.shards_in_transition.difference_update(shard_ids)
        lost_ids = set(shard_ids) - {shard.id for shard in taken}
        if lost_ids and self.on_shards_lost is not None:
            self.on_shards_lost(lost_ids)

    def _close(self, shard: Shard) -> None:
        self._shards[shard.id] = None
        shard.census.detach()
        for on_closed_callback in self.on_closed:
            on_closed_callback(shard)

    async def _take_over(
        self, shard_ids: Collection[int], expected_epochs: Mapping[int, int] | None
    ) -> list[Shard]:
        taken = []
        images = await self.store.take_over(shard_ids, self.owner, self.clock.wall_ms(), expected_epochs)
        self.apply_stored_config(await self.store.load_config(), shard_ids)
        self.policy_changed()
        for image in images:
            shard = Shard(
                image,
                clock=self.clock,
                listening=self.listening,
                shard_count=self.shard_count,
                grace_ms=self._grace_ms,
                timers=self._timers(image.shard_id),
                on_dirty=self._mark_dirty,
                evidence_sources=self._evidence_sources,
            )
            self._shards[image.shard_id] = shard
            shard.census.attach(self.census)
            self._dropped_population.pop(image.shard_id, None)
            taken.append(shard)
            for on_opened_callback in self.on_opened:
                on_opened_callback(shard)
        return taken

    def apply_stored_config(
        self, stored: Mapping[str, Mapping[str, float]], taken: Container[int] = frozenset()
    ) -> bool:
        """Settings as the store has them. Those whose shard was just taken may have been committed without an answer,
        and those of other nodes' shards change there. Of the rest, which may be changing just now, memory knows better.
        Returns whether anything changed."""
        changed = False
        for namespace, overrides in stored.items():
            config_shard_id = shard_of(namespace, "", self.shard_count)
            if (
                config_shard_id in taken or not self.serves(config_shard_id)
            ) and overrides != self.policies.overrides(namespace):
                self.policies.replace(namespace, overrides)
                changed = True
        return changed

    def policy_changed(self) -> None:
        """What heartbeats ask for may be granted otherwise now, and workers may be told otherwise."""
        for shard in self.shards():
            shard.clear_fingerprints()
        for callback in self.on_policy:
            callback()

    def _mark_dirty(self, shard: Shard) -> None:
        if shard.is_handed_over:
            raise self.unavailable_reason(shard.id)
        # Who still holds on to a shard that was dropped must not push aside the one that was re-read.
        if self._shards[shard.id] is shard:
            self.committer.mark_dirty(shard)

    def abort(self, error: StoreBroken) -> None:
        """Durability can no longer be promised."""
        self._closing = True
        self.committer.broken = True
        if not self.broken.done():
            self.broken.set_result(error)

    def _after_commit(self, prepared: Sequence[PreparedCommit]) -> None:
        for on_commit_callback in self.on_committed:
            on_commit_callback(prepared)

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.supervise(task)

    def supervise(self, task: asyncio.Task[None]) -> None:
        """A task that the server cannot do without ends it, should it fail."""
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug in the engine room: nothing more can be promised.
            logger.error("engine stopped", exc_info=error)
            self.abort(StoreBroken(detail=f"internal error: {error!r}"))
