"""Slots: a namespace's quota, divided among shards where several nodes share a database.

A shard may use as much of a resource as it was granted (`store/worker_slots.py`), without asking. When it has nothing left,
it acquires more; if none is free, other shards return what they do not use.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import grpc
import structlog

from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.domain.policy import Policy
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.quotas")

RETURN_SLOTS_TIMEOUT_S = 1.0


class Resource(NamedTuple):
    """The kinds of things that a quota limits."""

    suffix: str
    """Appended to the namespace where its slots are stored. It has a control character, which no namespace has."""
    use: Callable[[Shard, str], int]
    """How much of it a shard has, by namespace."""
    limit: Callable[[Policy], int]
    extra_max: int
    """How much more than requested a shard may be granted, while there is plenty."""

    def granted(self, shard: Shard, namespace: str) -> int:
        return shard.slots[namespace + self.suffix]

    def has_room(self, shard: Shard, namespace: str, amount: int) -> bool:
        return self.use(shard, namespace) + amount <= self.granted(shard, namespace)


WORKERS = Resource(
    "", lambda shard, namespace: shard.population[namespace], lambda policy: policy.max_workers, 1_000
)
OPEN_ACTIVITIES = Resource(
    "\x1factivities",
    lambda shard, namespace: shard.activities.open.counts[namespace],
    lambda policy: policy.max_open_activities,
    1_000,
)
OPEN_ACTIVITY_BYTES = Resource(
    "\x1factivity bytes",
    lambda shard, namespace: shard.activities.open.payload_bytes[namespace],
    lambda policy: policy.max_open_activity_bytes,
    4 * 1024**2,
)
UNITS = Resource(
    "\x1funits",
    lambda shard, namespace: shard.progress.counts[namespace],
    lambda policy: policy.max_progress_units,
    100,
)
SCHEDULES = Resource(
    "\x1fschedules",
    lambda shard, namespace: shard.objects.schedules.counts[namespace],
    lambda policy: policy.max_schedules,
    20,
)
CONCURRENCY_LIMITS = Resource(
    "\x1fconcurrency limits",
    lambda shard, namespace: shard.objects.limits.counts[namespace],
    lambda policy: policy.max_concurrency_limits,
    100,
)
RESOURCES = (WORKERS, OPEN_ACTIVITIES, OPEN_ACTIVITY_BYTES, UNITS, SCHEDULES, CONCURRENCY_LIMITS)


class Slots:
    def __init__(self, node: Node, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self._lock = asyncio.Lock()
        """Grants and returns must reach memory in the order in which the store made them."""

    async def acquire(
        self, resource: Resource, shard_id: int, namespace: str, policy: Policy, needed: Counter[int]
    ) -> bool:
        """Acquire what the shard needs. `needed`: what each shard of this node is going to use beyond its present use. Returns
        False if the namespace has its quota."""
        async with self._lock:
            if await self._grant(resource, shard_id, namespace, policy, needed[shard_id]):
                return True
            await self._return_unused(resource, namespace, needed)
            if await self._grant(resource, shard_id, namespace, policy, needed[shard_id]):
                return True
        await self._ask_peers_to_return_slots(namespace)
        async with self._lock:
            return await self._grant(resource, shard_id, namespace, policy, needed[shard_id])

    async def return_unused(self, namespace: str) -> int:
        """Return the unused slots of this node's shards, for other nodes. Returns their number."""
        async with self._lock:
            return sum([await self._return_unused(resource, namespace, Counter()) for resource in RESOURCES])

    async def _grant(
        self, resource: Resource, shard_id: int, namespace: str, policy: Policy, count: int
    ) -> bool:
        shard, name = self._node.shard_by_id(shard_id), namespace + resource.suffix
        missing = resource.use(shard, namespace) + count - shard.slots[name]
        if missing <= 0:
            return True  # another call has acquired it meanwhile
        shard.slots[name] = await self._node.store.grant_slots(
            shard.id, shard.epoch, name, missing, resource.limit(policy), resource.extra_max
        )
        return resource.has_room(shard, namespace, count)

    async def _return_unused(self, resource: Resource, namespace: str, needed: Counter[int]) -> int:
        """Return all slots that are neither used nor `needed`."""
        name = namespace + resource.suffix
        kept_by_shard = {
            shard: kept
            for shard in self._node.shards()
            if shard.slots[name] > (kept := resource.use(shard, namespace) + needed[shard.id])
        }
        if not kept_by_shard:
            return 0
        returned = sum(shard.slots[name] - count for shard, count in kept_by_shard.items())
        for shard, count in kept_by_shard.items():
            # Memory first: a slot that is being returned must not be used any more, even if the return fails.
            shard.slots[name] = count
        await self._node.store.return_slots(
            {shard.id: shard.epoch for shard in kept_by_shard},
            name,
            {shard.id: count for shard, count in kept_by_shard.items()},
        )
        return returned

    async def _ask_peers_to_return_slots(self, namespace: str) -> None:
        request = cluster_pb2.ReturnSlotsRequest(namespace=namespace)

        async def ask_peer(address: str) -> None:
            try:
                await self._peers.stub(address).ReturnSlots(request, timeout=RETURN_SLOTS_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.info("slots not returned", at=address, why=error.details())
            except asyncio.CancelledError:
                if not was_cancelled_by_channel():
                    raise

        await asyncio.gather(*map(ask_peer, self._peers.addresses()))
