"""Room for workers: a namespace's quota, never exceeded, whoever admits.

A node that has the database to itself counts in memory. Where several share it, each shard may have as many workers of a
namespace as it was granted (`store/slots.py`), so that admitting one needs no word with anybody while there is room.
When there is none, what other shards were granted and do not use is called back first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import grpc
import structlog

from liveness.cluster.peers import Peers, node_given_up
from liveness.domain import decider
from liveness.domain.errors import Unavailable, WorkerQuotaExceeded
from liveness.domain.policy import Policy
from liveness.shard.node import Node
from liveness.shard.shard import Shard
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.quotas")

CALL_BACK_SECONDS_MAX = 1.0
FULL_MS = 200
"""A namespace that was found full is not asked about again for so long."""


class RoomNeeded(Unavailable):
    """Shard {shard_id} has no room for another worker of namespace {namespace} just now; try again."""


class Quotas:
    def __init__(self, node: Node, peers: Peers | None = None) -> None:
        """`peers`: other nodes that share the database; None if there cannot be any."""
        self._node = node
        self._peers = peers
        self._turn = asyncio.Lock()
        """What is granted and what is given back must not cross each other on their way to memory."""
        self._full: dict[str, tuple[int, int]] = {}
        """Namespaces without room: until when, and how many workers there were here."""

    def admit(self, shard: Shard, namespace: str, policy: Policy) -> None:
        """Refuse one more worker; `RoomNeeded` if it is not known yet whether there is room."""
        if self._peers is None:
            decider.admit(namespace, policy, self._node.occupancy(namespace))
        elif shard.population[namespace] >= shard.slots[namespace]:
            until_ms, population = self._full.get(namespace, (0, 0))
            if self._node.clock.monotonic_ms() < until_ms and population == self._population(namespace):
                raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers)
            raise RoomNeeded(shard_id=shard.id, namespace=namespace)

    async def make_room(self, shard_ids: Iterable[int], namespace: str, policy: Policy) -> None:
        """Get room for one more in each of these shards, in this order, or raise `WorkerQuotaExceeded`."""
        needed: Counter[int] = Counter()
        for shard_id in shard_ids:
            needed[shard_id] += 1
            await self._make_room(shard_id, namespace, policy, needed)

    async def _make_room(self, shard_id: int, namespace: str, policy: Policy, needed: Counter[int]) -> None:
        count = needed[shard_id]
        async with self._turn:
            if await self._grant(shard_id, namespace, policy, count):
                return
            await self._give_back(namespace, needed)
            if await self._grant(shard_id, namespace, policy, count):
                return
        await self._call_back(namespace)
        async with self._turn:
            if await self._grant(shard_id, namespace, policy, count):
                return
        until_ms = self._node.clock.monotonic_ms() + FULL_MS
        self._full = {name: full for name, full in self._full.items() if full[0] > until_ms - FULL_MS}
        self._full[namespace] = until_ms, self._population(namespace)
        raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers)

    async def give_back(self, namespace: str) -> int:
        """Let others have what this node's shards do not use. Returns how much that is."""
        async with self._turn:
            return await self._give_back(namespace, Counter())

    # -- inside

    def _population(self, namespace: str) -> int:
        return sum(shard.population[namespace] for shard in self._node.shards())

    async def _grant(self, shard_id: int, namespace: str, policy: Policy, count: int) -> bool:
        shard = self._node.shard_by_id(shard_id)
        want = shard.population[namespace] + count - shard.slots[namespace]
        if want <= 0:
            return True  # somebody else got it meanwhile
        shard.slots[namespace] = await self._node.store.grant_slots(
            shard.id, shard.epoch, namespace, want, policy.max_workers
        )
        return shard.population[namespace] + count <= shard.slots[namespace]

    async def _give_back(self, namespace: str, needed: Counter[int]) -> int:
        """All that is not used, but what is about to be."""
        kept = {
            shard: shard.population[namespace] + needed[shard.id]
            for shard in self._node.shards()
            if shard.slots[namespace] > shard.population[namespace] + needed[shard.id]
        }
        if not kept:
            return 0
        returned = sum(shard.slots[namespace] - count for shard, count in kept.items())
        for shard, count in kept.items():
            # Memory first: what is on its way back must not be used any more, even if it never arrives.
            shard.slots[namespace] = count
        await self._node.store.return_slots(
            {shard.id: shard.epoch for shard in kept},
            namespace,
            {shard.id: count for shard, count in kept.items()},
        )
        return returned

    async def _call_back(self, namespace: str) -> None:
        assert self._peers is not None
        request = cluster_pb2.ReturnSlotsRequest(namespace=namespace)

        async def ask(address: str) -> None:
            assert self._peers is not None
            try:
                await self._peers.stub(address).ReturnSlots(request, timeout=CALL_BACK_SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                logger.info("room not called back", at=address, why=error.details())
            except asyncio.CancelledError:
                if not node_given_up():
                    raise

        await asyncio.gather(*map(ask, self._peers.addresses()))
