"""Checks that the address which this node gives out leads to it, and to no other node that is alive.

A node at another's address would get its calls and refuse them, and each would take the other for dead. A registered node at
the same address may just as well be an earlier run of this one, in a container or on a machine that is gone: then nobody
else answers there, and its beat stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import grpc

from liveness.clock import Clock
from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.routing.forwarding import TARGET_NODE_HEADER
from liveness.routing.routing_table import Owner
from liveness.routing.rpc_failures import WRONG_NODE, from_rpc_error
from liveness.store.errors import StoreUnusable
from liveness.store.node_registry import ClusterView, NodeRow, NodeState
from liveness.v1 import service_pb2
from liveness.v1.service_pb2_grpc import LivenessServiceStub

ANSWER_TIMEOUT_S = 1.0
BEATS_MISSED = 4
"""A node whose beat has not changed for this many of its renewal intervals is taken for gone, if it has our address."""


class AddressTaken(StoreUnusable):
    template = "Another node, {node_id}, is alive at the address {address}; give each node an address of its own with --advertise."

    node_id: str
    address: str


class OwnAddress:
    def __init__(self, node_id: str, address: str, peers: Peers, clock: Clock) -> None:
        self._node_id = node_id
        self._address = address
        self._peers = peers
        self._clock = clock

    def others_here(self, rows: Collection[NodeRow]) -> dict[str, NodeRow]:
        """The other registered nodes at this node's address, by id. Nodes that are leaving soon will not be there."""
        return {
            row.node_id: row
            for row in rows
            if row.address == self._address
            and row.node_id != self._node_id
            and row.state is not NodeState.LEAVING
        }

    async def node_that_answers(self) -> str | None:
        """Return the id of the node that answers at this node's address; None if no node does."""
        call = LivenessServiceStub(self._peers.channel(self._address)).GetServerInfo(
            service_pb2.GetServerInfoRequest(),
            metadata=((TARGET_NODE_HEADER, self._node_id),),
            timeout=ANSWER_TIMEOUT_S,
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, Owner(self._node_id, self._address, 0))
            return failure.fields.get("node_id") if failure.reason == WRONG_NODE else None
        except asyncio.CancelledError:
            if not was_cancelled_by_channel():
                raise
            return None
        return self._node_id

    async def require_free(
        self, rows: Collection[NodeRow], interval_ms: float, read: Callable[[], Awaitable[ClusterView]]
    ) -> None:
        """Return when none of these other nodes at this address is alive, or raise `AddressTaken`. `interval_ms`: how often
        each of them renews its lease. `read`: reads the registry."""
        if (found := await self.node_that_answers()) not in (None, self._node_id):
            raise AddressTaken(node_id=str(found), address=self._address)
        beats = {row.node_id: row.beat for row in rows}
        for _ in range(BEATS_MISSED):
            await self._clock.sleep(interval_ms)
            for id, row in self.others_here((await read()).nodes).items():
                if row.beat != beats.get(id):
                    raise AddressTaken(node_id=id, address=self._address)
