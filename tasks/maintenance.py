"""Periodic maintenance on APScheduler: checkpoints, compaction, retention. Leases do not use the scheduler: its sorted
job list costs O(n) per update."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS
from liveness.domain.errors import LivenessError
from liveness.engine.node import Node
from liveness.engine.policies import ALL_NAMESPACES
from liveness.store.api import UnpublishedRetention
from liveness.store.codec import SHORT_LIVED_KINDS
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.maintenance")

TOMBSTONES_PER_RUN_MAX = 1_000
SIZE_INTERVAL_S = 600
UNPUBLISHED_RETENTION_MS = 30 * 86_400_000
"""How long an event is kept for a broker that is down, if its own retention is shorter."""


class Maintenance:
    def __init__(
        self,
        node: Node,
        *,
        task_retention_ms: int,
        relay_name: str | None = None,
        database_bytes_max: int = 0,
        audit_retention_ms: int = 0,
        component_metrics_retention_ms: int = 0,
    ) -> None:
        """`relay_name`: the relay that must have published an event before the event is deleted. `database_bytes_max`: if
        the database holds more, the oldest events are deleted before their time; 0 for no limit. `audit_retention_ms`: 0 to
        keep the audit for ever. `component_metrics_retention_ms`: the same for metrics of components."""
        self._node = node
        self._audit_retention_ms = audit_retention_ms
        self._component_metrics_retention_ms = component_metrics_retention_ms
        self._database_bytes_max = database_bytes_max
        self._relay_name = relay_name
        self._task_retention_ms = task_retention_ms
        self._scheduler: AsyncIOScheduler | None = None

    async def checkpoint(self) -> None:
        """Write a checkpoint of each shard, delete the renewal rows that it contains, and drop finished activities from
        memory."""
        await self._node.checkpoint()
        for shard in self._node.shards():
            shard.activities.evict(shard.durable_seq)
        deleted = await self._node.store.compact_renewals(self._owned_epochs())
        logger.debug("checkpointed", renewals_deleted=deleted)

    async def apply_retention(self) -> None:
        """Delete tombstones, events, activities and finished tasks that are older than their retention."""
        node = self._node
        forgotten_count = sum(shard.forget_tombstones(TOMBSTONES_PER_RUN_MAX) for shard in node.shards())
        wall_ms = node.clock.wall_ms()

        def cutoffs(name: str) -> tuple[dict[str, int], int]:
            """Return the cutoff of each namespace that has settings of its own, and that of all others."""

            def cutoff(namespace: str) -> int:
                retention_ms: int = getattr(node.policies.of(namespace), name)
                return wall_ms - retention_ms if retention_ms else 0

            return {namespace: cutoff(namespace) for namespace in node.policies.namespaces()}, cutoff(
                ALL_NAMESPACES
            )

        unpublished = None
        if self._relay_name is not None:
            unpublished = UnpublishedRetention(self._relay_name, wall_ms - UNPUBLISHED_RETENTION_MS)
        events = await node.store.prune_events(
            self._owned_epochs(), *cutoffs("event_retention_ms"), unpublished=unpublished
        )
        await self._prune_deaths(*cutoffs("event_retention_ms"), unpublished)
        bindings = await node.store.prune_events(
            self._owned_epochs(),
            *cutoffs("binding_retention_ms"),
            unpublished=unpublished,
            kinds=SHORT_LIVED_KINDS,
        )
        if self._database_bytes_max:
            await self._enforce_size(unpublished)
        activities = await node.store.prune_activities(
            self._owned_epochs(), *cutoffs("activity_retention_ms")
        )
        tasks = await node.store.prune_tasks(self._owned_epochs(), wall_ms - self._task_retention_ms)
        if node.serves(0):
            await self._prune_for_all_nodes({0: node.shard_by_id(0).epoch}, wall_ms)
        logger.debug(
            "retention applied",
            tombstones=forgotten_count,
            events=events + bindings,
            activities=activities,
            tasks=tasks,
        )

    async def _prune_for_all_nodes(self, owned: dict[int, int], wall_ms: int) -> None:
        """Delete what belongs to no shard. The owner of the first shard does that."""
        store = self._node.store
        if self._audit_retention_ms:
            await store.prune_audit(owned, wall_ms - self._audit_retention_ms)
        if self._component_metrics_retention_ms:
            await store.prune_samples(owned, wall_ms - self._component_metrics_retention_ms)

    async def _prune_deaths(
        self, cutoffs: dict[str, int], default_cutoff: int, unpublished: UnpublishedRetention | None
    ) -> None:
        """Delete the deaths that no certificate which is still kept can count."""

        def keep_since(cutoff: int) -> int:
            oldest = cutoff if unpublished is None else min(cutoff, unpublished.keep_since_wall_ms)
            return oldest - CONCURRENT_DEATHS_WINDOW_MS

        await self._node.store.prune_deaths(
            self._owned_epochs(),
            {namespace: keep_since(cutoff) for namespace, cutoff in cutoffs.items()},
            keep_since(default_cutoff),
        )
        await self._node.store.prune_silences(self._owned_epochs(), cutoffs, default_cutoff)

    async def _enforce_size(self, unpublished: UnpublishedRetention | None) -> None:
        """If the database holds more than it may, delete the oldest samples of components' metrics, then the oldest
        short-lived events, then the oldest others. Each node deletes the share of its shards, and the owner of the first shard the samples."""
        node = self._node
        size = (await node.store.read_storage(node.clock.wall_ms())).size
        owned = self._owned_epochs()
        excess = (size.used_bytes - self._database_bytes_max) * len(owned) // node.shard_count
        freed = 0
        if excess > 0 and 0 in owned:
            freed = await node.store.delete_oldest_samples({0: owned[0]}, excess)
        for kinds in (SHORT_LIVED_KINDS, ()):
            if freed < excess:
                freed += await node.store.delete_oldest_events(
                    owned, excess - freed, unpublished, kinds=kinds
                )
        if freed:
            logger.warning(
                "samples and events deleted before their time, because the database exceeds database_bytes_max",
                bytes=size.used_bytes,
                bytes_max=self._database_bytes_max,
                bytes_freed=freed,
            )

    async def record_size(self) -> None:
        """Record the size of the database. The node that owns the first shard does that for all nodes."""
        if self._node.serves(0):
            shard = self._node.shard_by_id(0)
            await self._node.store.record_size({0: shard.epoch}, self._node.clock.wall_ms())

    def schedule(self, *, checkpoint_interval_s: float, retention_interval_s: float) -> None:
        scheduler = AsyncIOScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        scheduler.add_job(self._run_job, "interval", [self.checkpoint], seconds=checkpoint_interval_s)
        scheduler.add_job(self._run_job, "interval", [self.apply_retention], seconds=retention_interval_s)
        scheduler.add_job(self._run_job, "interval", [self.record_size], seconds=SIZE_INTERVAL_S)
        scheduler.start()
        self._scheduler = scheduler

    def stop(self) -> None:
        """Start no more runs, and cancel one that is under way."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    async def _run_job(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job, and leave a failure to the next run: the commits of heartbeats handle a failing store themselves."""
        try:
            await job()
        except (StoreError, LivenessError) as error:
            logger.warning("maintenance interrupted", job=job.__name__, why=str(error))

    def _owned_epochs(self) -> dict[int, int]:
        return {shard.id: shard.epoch for shard in self._node.shards()}
