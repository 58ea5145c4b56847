"""Room for workers: a namespace's quota, never exceeded, whoever admits.

A node that has the database to itself counts in memory. Where several share it, each shard may have as many workers of a
namespace as it was granted (`store/worker_slots.py`), so that admitting one needs no word with anybody while there is room.
When there is none, what other shards were granted and do not use is called back first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import grpc
import structlog

from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.domain import decider
from liveness.domain.errors import Unavailable, WorkerQuotaExceeded
from liveness.domain.policy import Policy
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.quotas")

RETURN_SLOTS_TIMEOUT_S = 1.0
FULL_NAMESPACE_TTL_MS = 200
"""A namespace that was found full is not asked about again for so long."""


class RoomNeeded(Unavailable):
    reason = "ROOM_NEEDED"
    template = "Shard {shard_id} has no room for another worker of namespace {namespace} just now; try again."

    shard_id: int
    namespace: str


class Quotas:
    def __init__(self, node: Node, peers: Peers | None = None) -> None:
        """`peers`: other nodes that share the database; None if there cannot be any."""
        self._node = node
        self._peers = peers
        self._slots_lock = asyncio.Lock()
        """What is granted and what is given back must not cross each other on their way to memory."""
        self._full_namespaces: dict[str, tuple[int, int]] = {}
        """Namespaces without room: until when, and how many workers there were here."""

    def admit(self, shard: Shard, namespace: str, policy: Policy) -> None:
        """Refuse one more worker; `RoomNeeded` if it is not known yet whether there is room."""
        if self._peers is None:
            decider.check_worker_quota(namespace, policy, self._node.count_workers(namespace))
        elif shard.population[namespace] >= shard.slots[namespace]:
            until_ms, population = self._full_namespaces.get(namespace, (0, 0))
            if self._node.clock.monotonic_ms() < until_ms and population == self._population(namespace):
                raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers)
            raise RoomNeeded(shard_id=shard.id, namespace=namespace)

    async def acquire_slots(self, shard_ids: Iterable[int], namespace: str, policy: Policy) -> None:
        """Get room for one more in each of these shards, in this order, or raise `WorkerQuotaExceeded`."""
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
        until_ms = self._node.clock.monotonic_ms() + FULL_NAMESPACE_TTL_MS
        self._full_namespaces = {
            name: full
            for name, full in self._full_namespaces.items()
            if full[0] > until_ms - FULL_NAMESPACE_TTL_MS
        }
        self._full_namespaces[namespace] = until_ms, self._population(namespace)
        raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers)

    async def return_unused(self, namespace: str) -> int:
        """Let others have what this node's shards do not use. Returns how much that is."""
        async with self._slots_lock:
            return await self._return_unused(namespace, Counter())

    # -- inside

    def _population(self, namespace: str) -> int:
        return sum(shard.population[namespace] for shard in self._node.shards())

    async def _grant(self, shard_id: int, namespace: str, policy: Policy, count: int) -> bool:
        shard = self._node.shard_by_id(shard_id)
        missing = shard.population[namespace] + count - shard.slots[namespace]
        if missing <= 0:
            return True  # somebody else got it meanwhile
        shard.slots[namespace] = await self._node.store.grant_slots(
            shard.id, shard.epoch, namespace, missing, policy.max_workers
        )
        return shard.population[namespace] + count <= shard.slots[namespace]

    async def _return_unused(self, namespace: str, needed: Counter[int]) -> int:
        """All that is not used, but what is about to be."""
        kept_by_shard = {
            shard: shard.population[namespace] + needed[shard.id]
            for shard in self._node.shards()
            if shard.slots[namespace] > shard.population[namespace] + needed[shard.id]
        }
        if not kept_by_shard:
            return 0
        returned = sum(shard.slots[namespace] - count for shard, count in kept_by_shard.items())
        for shard, count in kept_by_shard.items():
            # Memory first: what is on its way back must not be used any more, even if it never arrives.
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
                logger.info("room not called back", at=address, why=error.details())
            except asyncio.CancelledError:
                if not was_cancelled_by_channel():
                    raise

        await asyncio.gather(*map(ask_peer, self._peers.addresses()))
