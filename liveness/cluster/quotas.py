"""Worker quotas of namespaces, which are never exceeded, whichever node admits a worker.

A node that has the database to itself counts workers in memory. Where several nodes share a database, each shard may have
as many workers of a namespace as slots were granted to it (`store/worker_slots.py`), so that a shard with free slots admits
a worker without asking. When it has none left, other shards return their unused slots first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import grpc
import structlog

from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.domain import decider
from liveness.domain.errors import Unavailable, WorkerQuotaExceeded
from liveness.domain.policy import Policy
from liveness.domain.worker import WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.store.api import WorkerFilter
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.quotas")

RETURN_SLOTS_TIMEOUT_S = 1.0
FULL_NAMESPACE_TTL_MS = 200
"""A node does not ask for slots of a full namespace again for this long."""


class RoomNeeded(Unavailable):
    reason = "ROOM_NEEDED"
    template = "Shard {shard_id} has no room for another worker of namespace {namespace} just now; try again."

    shard_id: int
    namespace: str


class _FullNamespace(NamedTuple):
    until_ms: int
    """Until when to believe that the namespace has no free slots."""
    limit: int
    """The quota of the namespace when it was found to be full."""
    population: int
    """How many of its workers this node had then."""
    inactive: int
    """How many of its workers on all nodes were INACTIVE."""


_INACTIVE_WORKERS = WorkerFilter(states=(WorkerState.INACTIVE,))


class Quotas:
    def __init__(self, node: Node, peers: Peers | None = None) -> None:
        """`peers`: the nodes that share the database; None if there cannot be any."""
        self._node = node
        self._peers = peers
        self._slots_lock = asyncio.Lock()
        """Grants and returns must reach memory in the order in which the store made them."""
        self._full_namespaces: dict[str, _FullNamespace] = {}
        """Namespaces without free slots."""

    def admit(self, shard: Shard, namespace: str, policy: Policy) -> None:
        """Return if the shard may have one more worker. Raises `RoomNeeded` if slots must be acquired first."""
        if self._peers is None:
            inactive = self._node.census[namespace, WorkerState.INACTIVE]
            decider.check_worker_quota(namespace, policy, self._node.count_workers(namespace), inactive)
        elif shard.population[namespace] >= shard.slots[namespace]:
            full = self._full_namespaces.get(namespace)
            if (
                full is not None
                and self._node.clock.monotonic_ms() < full.until_ms
                and (full.limit, full.population) == (policy.max_workers, self._population(namespace))
            ):
                raise WorkerQuotaExceeded(
                    namespace=namespace, limit=policy.max_workers, inactive=full.inactive
                )
            raise RoomNeeded(shard_id=shard.id, namespace=namespace)

    async def acquire_slots(self, shard_ids: Iterable[int], namespace: str, policy: Policy) -> None:
        """Acquire a slot for each of these shards, in this order, or raise `WorkerQuotaExceeded`."""
        needed: Counter[int] = Counter()
        for shard_id in shard_ids:
            needed[shard_id] += 1
            await self._acquire_slots(shard_id, namespace, policy, needed)

    async def _acquire_slots(
        self, shard_id: int, namespace: str, policy: Policy, needed: Counter[int]
    ) -> None:
        count = needed[shard_id]
        async with self._slots_lock:
            if await self._grant(shard_id, namespace, policy, count):
                return
            await self._return_unused(namespace, needed)
            if await self._grant(shard_id, namespace, policy, count):
                return
        await self._ask_peers_to_return_slots(namespace)
        async with self._slots_lock:
            if await self._grant(shard_id, namespace, policy, count):
                return
        population = self._population(namespace)
        # The other nodes' workers count too.
        counts = await self._node.store.count_workers(namespace, _INACTIVE_WORKERS)
        inactive = counts.get(WorkerState.INACTIVE, 0)
        now_ms = self._node.clock.monotonic_ms()
        self._full_namespaces = {
            name: full for name, full in self._full_namespaces.items() if full.until_ms > now_ms
        }
        self._full_namespaces[namespace] = _FullNamespace(
            now_ms + FULL_NAMESPACE_TTL_MS, policy.max_workers, population, inactive
        )
        raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers, inactive=inactive)

    async def return_unused(self, namespace: str) -> int:
        """Return the unused slots of this node's shards, for other nodes. Returns their number."""
        async with self._slots_lock:
            return await self._return_unused(namespace, Counter())

    def _population(self, namespace: str) -> int:
        return sum(shard.population[namespace] for shard in self._node.shards())

    async def _grant(self, shard_id: int, namespace: str, policy: Policy, count: int) -> bool:
        shard = self._node.shard_by_id(shard_id)
        missing = shard.population[namespace] + count - shard.slots[namespace]
        if missing <= 0:
            return True  # another call has acquired it meanwhile
        shard.slots[namespace] = await self._node.store.grant_slots(
            shard.id, shard.epoch, namespace, missing, policy.max_workers
        )
        return shard.population[namespace] + count <= shard.slots[namespace]

    async def _return_unused(self, namespace: str, needed: Counter[int]) -> int:
        """Return all slots that are neither used nor `needed`."""
        kept_by_shard = {
            shard: shard.population[namespace] + needed[shard.id]
            for shard in self._node.shards()
            if shard.slots[namespace] > shard.population[namespace] + needed[shard.id]
        }
        if not kept_by_shard:
            return 0
        returned = sum(shard.slots[namespace] - count for shard, count in kept_by_shard.items())
        for shard, count in kept_by_shard.items():
            # Memory first: a slot that is being returned must not be used any more, even if the return fails.
            shard.slots[namespace] = count
        await self._node.store.return_slots(
            {shard.id: shard.epoch for shard in kept_by_shard},
            namespace,
            {shard.id: count for shard, count in kept_by_shard.items()},
        )
        return returned

    async def _ask_peers_to_return_slots(self, namespace: str) -> None:
        assert self._peers is not None
        request = cluster_pb2.ReturnSlotsRequest(namespace=namespace)

        async def ask_peer(address: str) -> None:
            assert self._peers is not None
            try:
                await self._peers.stub(address).ReturnSlots(request, timeout=RETURN_SLOTS_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.info("slots not returned", at=address, why=error.details())
            except asyncio.CancelledError:
                if not was_cancelled_by_channel():
                    raise

        await asyncio.gather(*map(ask_peer, self._peers.addresses()))
