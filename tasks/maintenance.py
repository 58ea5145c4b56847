"""Periodic housekeeping, on APScheduler: checkpoints, compaction, retention. Leases never come near it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from liveness.domain.errors import LivenessError
from liveness.engine.node import Node
from liveness.engine.policies import ALL_NAMESPACES
from liveness.store.api import UnpublishedRetention
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.maintenance")

TOMBSTONES_PER_RUN_MAX = 1_000
UNPUBLISHED_RETENTION_MS = 30 * 86_400_000
"""How long an event waits for a broker that is away, should its own retention be shorter."""


class Maintenance:
    def __init__(self, node: Node, *, task_retention_ms: int, relay_name: str | None = None) -> None:
        """`relay_name`: the relay that events must have passed before they are let go of."""
        self._node = node
        self._relay_name = relay_name
        self._task_retention_ms = task_retention_ms
        self._scheduler: AsyncIOScheduler | None = None

    async def checkpoint(self) -> None:
        """Fold renewals, then delete those that every shard's checkpoint contains. Let finished activities leave
        memory."""
        await self._node.checkpoint()
        for shard in self._node.shards():
            shard.activities.evict(shard.durable_seq)
        deleted = await self._node.store.compact_renewals(self._owned_epochs())
        logger.debug("checkpointed", renewals_deleted=deleted)

    async def apply_retention(self) -> None:
        """Let go of what is older than its retention: tombstones, events, finished tasks."""
        node = self._node
        forgotten_count = sum(shard.forget_tombstones(TOMBSTONES_PER_RUN_MAX) for shard in node.shards())
        wall_ms = node.clock.wall_ms()

        def cutoffs(name: str) -> tuple[dict[str, int], int]:
            """Of each namespace with settings of its own, and of all others."""

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
        activities = await node.store.prune_activities(
            self._owned_epochs(), *cutoffs("activity_retention_ms")
        )
        tasks = await node.store.prune_tasks(self._owned_epochs(), wall_ms - self._task_retention_ms)
        logger.debug(
            "retention applied", tombstones=forgotten_count, events=events, activities=activities, tasks=tasks
        )

    def schedule(self, *, checkpoint_interval_s: float, retention_interval_s: float) -> None:
        scheduler = AsyncIOScheduler(timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1})
        scheduler.add_job(self._run_job, "interval", [self.checkpoint], seconds=checkpoint_interval_s)
        scheduler.add_job(self._run_job, "interval", [self.apply_retention], seconds=retention_interval_s)
        scheduler.start()
        self._scheduler = scheduler

    def stop(self) -> None:
        """Start no more runs, and cancel one that is under way."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    async def _run_job(self, job: Callable[[], Awaitable[None]]) -> None:
        """A run that meets trouble is left to the next one; heartbeats deal with the trouble itself."""
        try:
            await job()
        except (StoreError, LivenessError) as error:
            logger.warning("maintenance interrupted", job=job.__name__, why=str(error))

    def _owned_epochs(self) -> dict[int, int]:
        return {shard.id: shard.epoch for shard in self._node.shards()}
