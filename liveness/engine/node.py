"""The shards that this process owns: it takes them, serves them, reads them again after a failed commit, hands them over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.clock import Clock, wait_for_event
from liveness.diagnostics.evidence import EvidenceSources
from liveness.diagnostics.stalls import STALL_MS
from liveness.domain.errors import ShardUnavailable, ShuttingDown, StoreFull, Unavailable
from liveness.domain.keys import shard_of
from liveness.domain.policy import Policy
from liveness.engine.census import NamespaceState
from liveness.engine.committer import CommitGroup, Committer, ObserveCommit
from liveness.engine.component_index import ComponentTotals
from liveness.engine.counter_totals import Counted, add_counted
from liveness.engine.listener import NodeListener
from liveness.engine.observed_clock import ListeningTime
from liveness.engine.open_activities import OpenActivities
from liveness.engine.policies import Policies
from liveness.engine.receive_progress import ReceiveProgress
from liveness.engine.registry_index import RegistryTotals
from liveness.engine.shard import PreparedCommit, Shard
from liveness.engine.shard_directory import ShardDirectory, SingleNodeDirectory
from liveness.engine.timers import Timers
from liveness.expiry.death_rate import DeathCount
from liveness.expiry.throttle import ExpiryThrottle
from liveness.store.api import Store
from liveness.store.errors import NoSpaceLeft, StoreBroken, StoreError

logger = structlog.get_logger("liveness.node")

TICK_MS = 50
CLOCK_WRITE_INTERVAL_MS = 500
"""Half of what the observed clock may run ahead, so that a slow commit does not freeze it."""
REOPEN_BACKOFF_MS = (50, 200, 1_000, 2_000, 5_000)
HAND_OVER_BATCH_SIZE = 16
"""The node hands over this many shards at a time; the others serve meanwhile."""


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
        directory: ShardDirectory | None = None,
        observe_commit: ObserveCommit | None = None,
    ) -> None:
        """`timers`: makes the timers of a shard that was just taken. `directory`: what to know about the cluster; without
        one, the node has the database to itself."""
        self.store = store
        self.clock = clock
        self.shard_count = shard_count
        self.owner = owner
        self.policies = Policies({}, namespaces, Policy(token_floor=store.timeline.token_floor))
        self.broken: asyncio.Future[StoreBroken] = asyncio.get_running_loop().create_future()
        """Done when durability can no longer be promised: the process must end."""
        self.shards_in_transition: set[int] = set()
        """Shards that are being taken, read again or handed over."""
        self._directory: ShardDirectory = directory or SingleNodeDirectory()
        self._listeners: list[NodeListener] = []
        self._grace_ms = grace_ms
        self._timers = timers
        self._shards: list[Shard | None] = [None] * shard_count
        self._dropped_population: dict[int, Counter[str]] = {}
        """Workers per namespace of each shard that is being read again."""
        self._dropped_activities: dict[int, OpenActivities] = {}
        """Open activities of each of these shards."""
        self._dropped_units: dict[int, Counter[str]] = {}
        self._dropped_schedules: dict[int, Counter[str]] = {}
        self._dropped_limits: dict[int, Counter[str]] = {}
        """Units of work per namespace of each of these shards."""
        self._give_up_count = 0
        """How often `give_up_shards` was called; shards that were to be read again before are not."""
        self._is_running = False
        self._closing = False
        self._tasks = BackgroundTasks("node", on_failure=self.fail)
        self._reopened = asyncio.Event()
        """Set when some shards were read again."""
        self._reopen_warning = RepeatedWarning(logger, "cannot read shards again", clock)
        self._last_tick_ms = clock.monotonic_ms()
        self._expiries_held_until_ms = 0
        self.census: Counter[NamespaceState] = Counter()
        """Workers by namespace and state, over all shards that serve here."""
        self.components = ComponentTotals()
        self.registry = RegistryTotals()
        self._applied_before: dict[str, Counted] = {}
        """What workers counted here, in shards that are no longer served."""
        self.open_activities = OpenActivities()
        """Open activities by namespace, over all shards that serve here."""
        self.listening = ListeningTime(clock)
        self.receive_progress = ReceiveProgress(clock, self.listening)
        self._is_behind = False
        """Whether calls wait for long before this process hears them."""
        self.throttle = ExpiryThrottle(
            clock, self.policies.of, self.census, on_death_count=self._report_deaths
        )
        self._evidence_sources = EvidenceSources(clock, shard_count)
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

    def add_listener(self, listener: NodeListener) -> None:
        """Tell `listener` of everything from now on, after the listeners that were added before it."""
        self._listeners.append(listener)

    # -- start and end

    async def open(self, expected_epochs: Mapping[int, int] | None = None) -> list[Shard]:
        """Take the shards whose epoch is still the expected one, or all shards if none is given. Returns those that were
        taken."""
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
        """Stop serving these shards and give up their ownership, so that another node can take them. Returns those that
        were handed over; the others have another owner already, or must be read again."""
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

    def give_up_shards(self) -> int:
        """Stop serving all shards at once, without a commit: this node can commit nothing, and others may own the shards by
        now. Callers that wait for a commit get UNAVAILABLE; the next owner finds out whether it took place. Returns the
        number of shards that were served."""
        served = self.shards()
        for shard in served:
            self._close(shard)
        self._give_up_count += 1
        self._dropped_population.clear()
        self._dropped_activities.clear()
        self._dropped_units.clear()
        self._dropped_schedules.clear()
        self._dropped_limits.clear()
        if self.committer.abandon(served):
            self._tasks.start(self.committer.run())
        return len(served)

    def start(self, *, tick: bool = True) -> None:
        """Begin to commit and, with `tick`, to look at the clock at regular intervals."""
        self._is_running = True
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_tick_ms > STALL_MS:
            # Reading the workers took long. That is no stall, but heartbeats may lie unread all the same.
            self._expiries_held_until_ms = now_ms + STALL_MS
        self._last_tick_ms = now_ms
        self._tasks.start(self.committer.run())
        if tick:
            self._tasks.start(self._run_ticks())

    @property
    def is_committing(self) -> bool:
        """Whether a call that waits for its commit will get an answer."""
        return self._is_running and not self.committer.broken

    @property
    def is_closing(self) -> bool:
        """Whether every call about a shard is refused because the server stops."""
        return self._closing

    def stop_listening(self) -> None:
        """Stop the observed clocks: heartbeats can no longer arrive, so silence must not count from now on."""
        self.listening.stop()

    async def close(self) -> None:
        """Commit what was decided, hand over all shards, and stop. Durable replies may still be waiting to be sent.

        A node that was never started has decided nothing and has no committer: it gives up its shards as they are.
        """
        self._closing = True
        self.stop_listening()
        if self.is_committing:
            await self.hand_over(range(self.shard_count))
        await self._tasks.close()

    async def checkpoint(self) -> None:
        """Shorten the next recovery by folding each shard's renewals into one row: one shard per commit, so that no
        commit takes long."""
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

    def unavailable_reason(self, shard_id: int) -> Unavailable:
        """The error for a caller that needs a shard which this node does not serve."""
        reason = self._directory.unavailable_reason(shard_id)
        return self.commit_failure(shard_id) if isinstance(reason, ShardUnavailable) else reason

    def commit_failure(self, shard_id: int) -> Unavailable:
        """The error for a caller whose commit failed. It does not name another owner of the shard, because the caller's
        command may have been decided here."""
        failure = self.committer.last_failure
        if isinstance(failure, NoSpaceLeft):
            return StoreFull(detail=failure.detail)
        return ShardUnavailable(shard_id=shard_id)

    def serves(self, shard_id: int) -> bool:
        return self._shards[shard_id] is not None

    def shard_table(self) -> Sequence[Shard | None]:
        """Shards by id, None where this node does not serve one; for callers that look up many."""
        if self._closing:
            raise ShuttingDown
        return self._shards

    def observed_ms(self, shard_id: int) -> int:
        """A shard's observed time, for display only; a little behind where another node serves the shard."""
        shard = self._shards[shard_id]
        return shard.now_ms() if shard is not None else self._directory.remote_observed_ms(shard_id)

    def shards(self) -> list[Shard]:
        """The shards that this node serves now."""
        return [shard for shard in self._shards if shard is not None]

    def count_workers(self, namespace: str) -> int:
        """Workers of a namespace. A shard that is being read again counts as it was, undurable registrations included:
        meanwhile a quota may refuse one worker too many, but never admits one too many."""
        return sum(shard.population[namespace] for shard in self._shards if shard is not None) + sum(
            population[namespace] for population in self._dropped_population.values()
        )

    def count_open_activities(self, namespace: str) -> tuple[int, int]:
        """Open activities of a namespace and the bytes of their payloads. A shard that is being read again counts as it was."""
        parts = [self.open_activities, *self._dropped_activities.values()]
        return sum(part.counts[namespace] for part in parts), sum(
            part.payload_bytes[namespace] for part in parts
        )

    def count_units(self, namespace: str) -> int:
        """Units of work of a namespace. A shard that is being read again counts as it was."""
        return sum(shard.progress.counts[namespace] for shard in self.shards()) + sum(
            units[namespace] for units in self._dropped_units.values()
        )

    def count_schedules(self, namespace: str) -> int:
        """Schedules of a namespace. A shard that is being read again counts as it was."""
        return sum(shard.objects.schedules.counts[namespace] for shard in self.shards()) + sum(
            schedules[namespace] for schedules in self._dropped_schedules.values()
        )

    def count_concurrency_limits(self, namespace: str) -> int:
        """Concurrency limits of a namespace. A shard that is being read again counts as it was."""
        return sum(shard.objects.limits.counts[namespace] for shard in self.shards()) + sum(
            limits[namespace] for limits in self._dropped_limits.values()
        )

    def counted(self) -> dict[str, Counted]:
        """What workers counted on this node since its start, by namespace, without what was refused or repeated. Includes
        heartbeats whose commit failed."""
        return add_counted([self._applied_before, *(shard.census.totals.applied for shard in self.shards())])

    def counter_totals(self) -> dict[str, Counted]:
        """What the workers of this node's shards counted since each registered, by namespace."""
        return add_counted(shard.census.totals.totals() for shard in self.shards())

    def barrier(self) -> CommitGroup:
        """The group after which everything that memory shows now is durable."""
        if self.clock.monotonic_ms() >= self._directory.owned_until_ms:
            # Another node may have taken these shards, for instance while this process stood still. A commit of each
            # shard tells.
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
        """Whether nothing that this very object decided was lost: it still serves, or was handed over completely."""
        return self._shards[shard.id] is shard or shard.is_handed_over

    async def wait_all_durable(self) -> None:
        """Return when everything that memory shows now is committed, or raise. For refusals: they rest on all of it."""
        group = self.barrier()
        # Memory no longer shows what was lost before now.
        lost_before = group.lost
        await group.wait()
        if lost := group.lost - lost_before:
            raise self.commit_failure(min(lost)[0])

    # -- time

    async def _run_ticks(self) -> None:
        while True:
            due_ms = self.clock.monotonic_ms() + TICK_MS
            await self.clock.sleep(TICK_MS)
            lag_ms = max(0, self.clock.monotonic_ms() - due_ms)
            for listener in self._listeners:
                listener.lagged(lag_ms)
            self.tick()

    def probe_answered(self) -> int:
        """Take note that everything has been heard which arrived before the last probe but one. Returns how long the last
        one waited."""
        lag_ms = self.receive_progress.probe_answered()
        if lag_ms > STALL_MS:
            self.stalls.add(self.clock.wall_ms(), lag_ms)
        if (lag_ms > STALL_MS) != self._is_behind:
            self._is_behind = not self._is_behind
            if self._is_behind:
                logger.warning(
                    "calls wait for long before this server hears them; it may lack processor time", ms=lag_ms
                )
            else:
                logger.info("calls are heard at once again", ms=lag_ms)
        if self.clock.monotonic_ms() >= self._expiries_held_until_ms:
            for listener in self._listeners:
                listener.heard(lag_ms)
        return lag_ms

    @property
    def may_end_leases(self) -> bool:
        """Whether leases that are over may end between two ticks. Not after a stall, when heartbeats may lie unread: a late tick
        finds that out first."""
        now_ms = self.clock.monotonic_ms()
        return self._expiries_held_until_ms <= now_ms <= self._last_tick_ms + STALL_MS

    def tick(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._last_tick_ms > STALL_MS:
            # Heartbeats may lie unread in the sockets.
            stall_ms = now_ms - self._last_tick_ms
            logger.warning("process stalled", ms=stall_ms)
            self.stalls.add(self.clock.wall_ms(), stall_ms)
            self._expiries_held_until_ms = now_ms + STALL_MS
            for listener in self._listeners:
                listener.stalled(stall_ms)
        self._last_tick_ms = now_ms
        if now_ms >= self._expiries_held_until_ms:
            for listener in self._listeners:
                listener.tick()
        for shard in self.shards():
            if shard.clock_age_ms() >= CLOCK_WRITE_INTERVAL_MS:
                self.committer.mark_dirty(shard)

    # -- failures

    def _on_shards_dropped(self, lost: Sequence[Shard], has_new_owner: bool) -> None:
        """Stop serving shards whose commit failed. `has_new_owner`: it failed because another owner has taken them."""
        for shard in lost:
            if self._shards[shard.id] is shard:
                self._dropped_population[shard.id] = shard.population
                self._dropped_activities[shard.id] = shard.activities.open
                self._dropped_units[shard.id] = shard.progress.counts
                self._dropped_schedules[shard.id] = shard.objects.schedules.counts
                self._dropped_limits[shard.id] = shard.objects.limits.counts
                self._close(shard)
            shard.is_handed_over = False  # the commit that would have handed it over is lost
        if self._closing:
            return
        ids = [shard.id for shard in lost]
        reclaims = self._directory.reclaims_lost_shards
        if has_new_owner and not reclaims:
            self._report_lost(ids)
            return
        self.shards_in_transition.update(ids)
        self._tasks.start(self._reopen(ids, None if reclaims else {shard.id: shard.epoch for shard in lost}))

    async def _reopen(self, shard_ids: Sequence[int], expected_epochs: Mapping[int, int] | None) -> None:
        taken: list[Shard] = []
        give_up_count = self._give_up_count
        try:
            for attempt in range(1_000_000):
                if give_up_count != self._give_up_count:
                    return
                try:
                    taken = await self._take_over(shard_ids, expected_epochs)
                except StoreBroken as error:
                    self.abort(error)
                    return
                except StoreError as error:
                    self.committer.last_failure = error
                    self._reopen_warning.warn(shards=len(shard_ids), why=str(error))
                    backoff_ms = REOPEN_BACKOFF_MS[min(attempt, len(REOPEN_BACKOFF_MS) - 1)]
                    await wait_for_event(self._reopened, self.clock, backoff_ms)
                else:
                    self.committer.last_failure = None
                    self._reopen_warning.resolve()
                    # Shards that were dropped by other commits need not wait any longer.
                    reopened, self._reopened = self._reopened, asyncio.Event()
                    reopened.set()
                    logger.info("shards serve again", shards=len(taken))
                    break
        finally:
            self.shards_in_transition.difference_update(shard_ids)
        if lost_ids := set(shard_ids) - {shard.id for shard in taken}:
            self._report_lost(lost_ids)

    def _report_lost(self, shard_ids: Collection[int]) -> None:
        for listener in self._listeners:
            listener.shards_lost(shard_ids)

    def _close(self, shard: Shard) -> None:
        self._shards[shard.id] = None
        self._applied_before = add_counted([self._applied_before, shard.census.totals.applied])
        shard.census.detach()
        shard.census.components.detach()
        shard.census.registry.detach()
        shard.activities.open.detach()
        self.throttle.drop_shard(shard)
        for listener in self._listeners:
            listener.shard_closed(shard)

    async def _take_over(
        self, shard_ids: Collection[int], expected_epochs: Mapping[int, int] | None
    ) -> list[Shard]:
        taken = []
        snapshots = await self.store.take_over(shard_ids, self.owner, self.clock.wall_ms(), expected_epochs)
        self.apply_stored_config(await self.store.load_config(), shard_ids)
        self.policy_changed()
        for snapshot in snapshots:
            shard = Shard(
                snapshot,
                clock=self.clock,
                listening=self.listening,
                shard_count=self.shard_count,
                grace_ms=self._grace_ms,
                timers=self._timers(snapshot.shard_id),
                on_dirty=self._mark_dirty,
                evidence_sources=self._evidence_sources,
                throttle=self.throttle,
            )
            self._shards[snapshot.shard_id] = shard
            shard.census.attach(self.census)
            shard.census.components.attach(self.components)
            shard.census.registry.attach(self.registry)
            shard.activities.open.attach(self.open_activities)
            self._dropped_population.pop(snapshot.shard_id, None)
            self._dropped_activities.pop(snapshot.shard_id, None)
            self._dropped_units.pop(snapshot.shard_id, None)
            self._dropped_schedules.pop(snapshot.shard_id, None)
            self._dropped_limits.pop(snapshot.shard_id, None)
            taken.append(shard)
            for listener in self._listeners:
                listener.shard_opened(shard)
        return taken

    def apply_stored_config(
        self, stored: Mapping[str, Mapping[str, float]], taken: Container[int] = frozenset()
    ) -> bool:
        """Apply the namespaces' settings from the store if their shard was just taken (a change may have been committed
        without an answer) or belongs to another node (which changes them). All other settings stay as they are in
        memory, where a change may be in progress. Returns whether anything changed."""
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
        """Decide again what heartbeats are granted and what workers are told, now that a policy has changed."""
        for shard in self.shards():
            shard.clear_fingerprints()
        self.throttle.policy_changed()
        for listener in self._listeners:
            listener.policy_changed()

    def _mark_dirty(self, shard: Shard) -> None:
        if shard.is_handed_over:
            raise self.unavailable_reason(shard.id)
        # A caller that still holds a dropped shard must not displace the one that was read again.
        if self._shards[shard.id] is shard:
            self.committer.mark_dirty(shard)

    def abort(self, error: StoreBroken) -> None:
        """Acknowledge nothing more: durability can no longer be promised."""
        self._closing = True
        self.committer.broken = True
        if not self.broken.done():
            self.broken.set_result(error)

    def fail(self, error: BaseException) -> None:
        """Abort because of a bug: a task failed that the server cannot do without."""
        self.abort(StoreBroken(detail=f"internal error: {error!r}"))

    def _after_commit(self, commits: Sequence[PreparedCommit]) -> None:
        for listener in self._listeners:
            listener.committed(commits)

    def _report_deaths(self, namespace: str, death_count: DeathCount) -> None:
        for listener in self._listeners:
            listener.deaths_counted(namespace, death_count)
