"""The shards that this process owns, and their way through start, trouble and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import structlog

from liveness.clock import Clock
from liveness.domain.errors import ShardUnavailable, ShuttingDown, Unavailable
from liveness.domain.keys import shard_of
from liveness.domain.policy import Policy
from liveness.shard.brake import Brake
from liveness.shard.census import Rank
from liveness.shard.committer import Committer, Follow, Group
from liveness.shard.deadlines import Deadlines
from liveness.shard.observed_clock import ListeningTime
from liveness.shard.policies import Policies
from liveness.shard.shard import HandedOver, Shard
from liveness.shard.stalls import STALL_MS
from liveness.shard.witness import Surroundings
from liveness.store.api import Store
from liveness.store.errors import StoreBroken, StoreError

logger = structlog.get_logger("liveness.node")

PULSE_MS = 50
CLOCK_WRITTEN_EVERY_MS = 500
"""Half of what the observed clock may run ahead, so that a slow commit does not freeze it."""
REOPEN_BACKOFF_MS = (50, 200, 1_000, 2_000, 5_000)
NEVER_MS = 2**63
RELEASED_AT_ONCE = 16
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
        deadlines: Callable[[int], Deadlines],
        namespaces: Collection[str] = (),
        follow: Follow | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.shard_count = shard_count
        self.policies = Policies({}, namespaces, Policy(token_floor=store.history.token_floor))
        self.broken: asyncio.Future[StoreBroken] = asyncio.get_running_loop().create_future()
        """Done when durability can no longer be promised: the process must end."""
        self.on_pulse: list[Callable[[], None]] = []
        self.on_lag: list[Callable[[int], None]] = []
        """Told with each pulse by how many milliseconds it was late: so long had everybody else to wait, too."""
        self.on_stall: list[Callable[[int], None]] = []
        """Told for how many milliseconds the process stood still."""
        self.on_committed: list[Callable[[Sequence[HandedOver]], None]] = []
        self.on_opened: list[Callable[[Shard], None]] = []
        self.on_closed: list[Callable[[Shard], None]] = []
        """A shard does not serve here any more: handed over, taken by another, or about to be read again."""
        self.on_policy: list[Callable[[], None]] = []
        self.owner = owner
        self.on_robbed: Callable[[Collection[int]], None] | None = None
        """Told of shards that another owner has taken; without it, they are taken back."""
        self.whereabouts: Callable[[int], Unavailable] = lambda shard_id: ShardUnavailable(shard_id=shard_id)
        """Why a shard does not serve here, for those who asked for it."""
        self.sure_until_ms: Callable[[], int] = lambda: NEVER_MS
        """On the monotonic clock: until then, no other node can have taken a shard of this one."""
        self.observed_elsewhere: Mapping[int, int] = {}
        """What the clocks of other nodes' shards showed, some moments ago."""
        self.busy: set[int] = set()
        """Shards that are being taken, read again or handed over."""
        self._grace_ms = grace_ms
        self._deadlines = deadlines
        self._shards: list[Shard | None] = [None] * shard_count
        self._dropped_population: dict[int, Counter[str]] = {}
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_pulse_ms = clock.monotonic_ms()
        self._expiries_held_until_ms = 0
        self.census: Counter[Rank] = Counter()
        """Of all shards that serve here."""
        self.listening = ListeningTime(clock)
        self.brake = Brake(clock, self.policies, self.census)
        self.on_policy.append(self.brake.policy_changed)
        self.on_closed.append(self.brake.forget)
        self._surroundings = Surroundings(clock, shard_count, self.brake)
        self.obituaries, self.stalls = self._surroundings.obituaries, self._surroundings.stalls
        self.committer = Committer(
            store,
            clock,
            self.listening,
            self.stalls,
            interval_ms=commit_interval_ms,
            on_lost=self._on_lost,
            on_committed=self._after_commit,
            on_broken=self.give_up,
            follow=follow,
        )

    # -- life

    async def open(self, seen: Mapping[int, int] | None = None) -> list[Shard]:
        """Take shards, those whose epoch is still the one that was seen, or, without that, all. Returns those it got."""
        wanted = range(self.shard_count) if seen is None else [id for id in seen if id not in self.busy]
        self.busy.update(wanted)
        try:
            return await self._take_over(wanted, seen)
        finally:
            self.busy.difference_update(wanted)

    async def release(self, shard_ids: Iterable[int]) -> list[Shard]:
        """Hand shards over: they serve nobody from now on, and whoever is meant to may take them. Returns those that
        were let go of; the others have another owner already, or must be read again."""
        leaving = [shard for id in shard_ids if (shard := self._shards[id]) is not None]
        released: list[Shard] = []
        for start in range(0, len(leaving), RELEASED_AT_ONCE):
            released += await self._release(leaving[start : start + RELEASED_AT_ONCE])
        return released

    async def _release(self, leaving: Sequence[Shard]) -> list[Shard]:
        leaving = [shard for shard in leaving if self._shards[shard.id] is shard]
        ids = [shard.id for shard in leaving]
        self.busy.update(ids)
        try:
            for shard in leaving:
                self._close(shard)
                shard.departed = True
            # One commit for all: nothing else happens between these calls.
            groups = [self.committer.request_release(shard) for shard in leaving]
            for group in groups:
                await group.wait()
            return [shard for shard, group in zip(leaving, groups, strict=True) if not group.failed(shard)]
        finally:
            self.busy.difference_update(ids)

    def start(self, *, pulse: bool = True) -> None:
        """Begin committing and, with `pulse`, looking at the clock by itself."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_pulse_ms > STALL_MS:
            # Reading so many workers took its time. That is no stall, but heartbeats may lie unread all the same.
            self._expiries_held_until_ms = now_ms + STALL_MS
        self._last_pulse_ms = now_ms
        self._spawn(self.committer.run())
        if pulse:
            self._spawn(self._run_pulse())

    def stop_listening(self) -> None:
        """Heartbeats can no longer come in: silence counts against nobody from now on."""
        self.listening.stop()

    async def close(self) -> None:
        """Commit what was decided, let go of all shards, stop. Durable replies may still be waiting to leave."""
        self._closing = True
        self.stop_listening()
        if not self.committer.broken:
            await self.release(range(self.shard_count))
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
            raise self.whereabouts(shard_id)
        return shard

    def serves(self, shard_id: int) -> bool:
        return self._shards[shard_id] is not None

    def table(self) -> Sequence[Shard | None]:
        """Shards by id, None where one is being re-read; for callers that look up many."""
        if self._closing:
            raise ShuttingDown
        return self._shards

    def observed_ms(self, shard_id: int) -> int:
        """A shard's time, for telling people; a little behind where another node serves it."""
        shard = self._shards[shard_id]
        return shard.now_ms() if shard is not None else self.observed_elsewhere.get(shard_id, 0)

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
        """The group after which everything that memory shows now is durable."""
        if self.clock.monotonic_ms() >= self.sure_until_ms():
            # Another node may have taken what memory shows, for instance while this process stood still: a commit
            # of each shard tells.
            for shard in self.shards():
                self.committer.touch(shard)
        return self.committer.barrier()

    async def durable(self, shard: Shard) -> None:
        """Return when everything `shard` shows now is committed, or raise."""
        group = self.barrier()
        await group.wait()
        if group.failed(shard) or not self.holds(shard):
            raise self.whereabouts(shard.id)

    def holds(self, shard: Shard) -> bool:
        """Whether nothing that this very object decided was lost: it serves still, or was handed over whole."""
        return self._shards[shard.id] is shard or shard.departed

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
            due_ms = self.clock.monotonic_ms() + PULSE_MS
            await self.clock.sleep(PULSE_MS)
            lag_ms = max(0, self.clock.monotonic_ms() - due_ms)
            for measure in self.on_lag:
                measure(lag_ms)
            self.pulse()

    def pulse(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_pulse_ms > STALL_MS:
            # Heartbeats may lie unread in its sockets.
            stall_ms = now_ms - self._last_pulse_ms
            logger.warning("stood still", ms=stall_ms)
            self.stalls.add(self.clock.wall_ms(), stall_ms)
            self._expiries_held_until_ms = now_ms + STALL_MS
            for note in self.on_stall:
                note(stall_ms)
        self._last_pulse_ms = now_ms
        if now_ms >= self._expiries_held_until_ms:
            for look in self.on_pulse:
                look()
        for shard in self.shards():
            if shard.clock_age_ms() >= CLOCK_WRITTEN_EVERY_MS:
                self.committer.touch(shard)

    # -- trouble

    def _on_lost(self, lost: Sequence[Shard], theirs: bool) -> None:
        """Shards whose commit failed. `theirs`: because they have another owner."""
        for shard in lost:
            if self._shards[shard.id] is shard:
                self._dropped_population[shard.id] = shard.population
                self._close(shard)
            shard.departed = False  # what it was to hand over is lost
        if self._closing:
            return
        if theirs and self.on_robbed is not None:
            self.on_robbed([shard.id for shard in lost])
            return
        ids = [shard.id for shard in lost]
        self.busy.update(ids)
        alone = self.on_robbed is None
        self._spawn(self._reopen(ids, None if alone else {shard.id: shard.epoch for shard in lost}))

    async def _reopen(self, shard_ids: Sequence[int], seen: Mapping[int, int] | None) -> None:
        taken: list[Shard] = []
        try:
            for attempt in range(1_000_000):
                try:
                    taken = await self._take_over(shard_ids, seen)
                except StoreBroken as error:
                    self.give_up(error)
                    return
                except StoreError as error:
                    logger.warning("cannot re-read shards", shards=len(shard_ids), why=str(error))
                    await self.clock.sleep(REOPEN_BACKOFF_MS[min(attempt, len(REOPEN_BACKOFF_MS) - 1)])
                else:
                    logger.info("shards serve again", shards=len(taken))
                    break
        finally:
            self.busy.difference_update(shard_ids)
        robbed = set(shard_ids) - {shard.id for shard in taken}
        if robbed and self.on_robbed is not None:
            self.on_robbed(robbed)

    def _close(self, shard: Shard) -> None:
        self._shards[shard.id] = None
        shard.census.leave()
        for closed in self.on_closed:
            closed(shard)

    async def _take_over(self, shard_ids: Collection[int], seen: Mapping[int, int] | None) -> list[Shard]:
        taken = []
        images = await self.store.take_over(shard_ids, self.owner, self.clock.wall_ms(), seen)
        self.adopt_config(await self.store.load_config(), shard_ids)
        self.policy_changed()
        for image in images:
            shard = Shard(
                image,
                clock=self.clock,
                listening=self.listening,
                shard_count=self.shard_count,
                grace_ms=self._grace_ms,
                deadlines=self._deadlines(image.shard_id),
                on_dirty=self._touch,
                surroundings=self._surroundings,
            )
            self._shards[image.shard_id] = shard
            shard.census.join(self.census)
            self._dropped_population.pop(image.shard_id, None)
            taken.append(shard)
            for opened in self.on_opened:
                opened(shard)
        return taken

    def adopt_config(
        self, stored: Mapping[str, Mapping[str, float]], taken: Container[int] = frozenset()
    ) -> bool:
        """Settings as the store has them. Those whose shard was just taken may have been committed without an answer,
        and those of other nodes' shards change there. Of the rest, which may be changing just now, memory knows better.
        Returns whether anything changed."""
        changed = False
        for namespace, overrides in stored.items():
            home = shard_of(namespace, "", self.shard_count)
            if (home in taken or not self.serves(home)) and overrides != self.policies.overrides(namespace):
                self.policies.replace(namespace, overrides)
                changed = True
        return changed

    def policy_changed(self) -> None:
        """What heartbeats ask for may be granted otherwise now, and workers may be told otherwise."""
        for shard in self.shards():
            shard.forget_forms()
        for look in self.on_policy:
            look()

    def _touch(self, shard: Shard) -> None:
        if shard.departed:
            raise self.whereabouts(shard.id)
        # Who still holds on to a shard that was dropped must not push aside the one that was re-read.
        if self._shards[shard.id] is shard:
            self.committer.touch(shard)

    def give_up(self, error: StoreBroken) -> None:
        """Durability can no longer be promised."""
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
        task.add_done_callback(self._tasks.discard)
        self.supervise(task)

    def supervise(self, task: asyncio.Task[None]) -> None:
        """A task that the server cannot do without ends it, should it fail."""
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug in the engine room: nothing more can be promised.
            logger.error("engine stopped", exc_info=error)
            self.give_up(StoreBroken(detail=f"internal error: {error!r}"))
