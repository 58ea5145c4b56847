"""Calls to all other nodes end when one of those nodes is lost during the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from liveness.cluster.peers import Peers
from liveness.domain.errors import NodeLost
from liveness.routing.routing_table import Member, RoutingTable
from liveness.server.all_nodes import AllNodes
from liveness.v1 import admin_pb2

TIMEOUT_S = 10
PATH = "AdminService/ListShards"


class SilentNode(grpc.GenericRpcHandler):
    """A node that receives calls and never answers."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def never_answer(request: bytes, context: object) -> bytes:
            self.called.set()
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(never_answer)


@pytest.fixture
async def silent_node() -> AsyncIterator[tuple[SilentNode, str]]:
    handler = SilentNode()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield handler, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_node_lost_during_a_call_is_skipped_or_reported(
    silent_node: tuple[SilentNode, str],
) -> None:
    """Closing its channel ends the call without a status; the caller must still be told."""
    handler, address = silent_node
    routes, peers = RoutingTable(1), Peers("me")
    routes.replace([Member("gone", address)], {0: ("gone", 1)})
    all_nodes = AllNodes("me", routes, peers)

    async def ended(call: asyncio.Task[list[admin_pb2.ListShardsResponse]]) -> None:
        await handler.called.wait()
        handler.called.clear()
        peers.set_addresses(())
        await asyncio.wait([call], timeout=TIMEOUT_S)
        assert call.done()
        assert not call.cancelled()

    def ask(*, skip_failed: bool) -> asyncio.Task[list[admin_pb2.ListShardsResponse]]:
        return asyncio.create_task(
            all_nodes.call_other_nodes(
                PATH, admin_pb2.ListShardsRequest(), admin_pb2.ListShardsResponse, skip_failed=skip_failed
            )
        )

    async with asyncio.timeout(3 * TIMEOUT_S):
        await ended(skip_failed := ask(skip_failed=True))
        assert skip_failed.result() == []
        await ended(strict := ask(skip_failed=False))
        with pytest.raises(NodeLost):
            strict.result()


async def test_a_call_to_all_nodes_can_be_cancelled(silent_node: tuple[SilentNode, str]) -> None:
    handler, address = silent_node
    routes, peers = RoutingTable(1), Peers("me")
    routes.replace([Member("slow", address)], {0: ("slow", 1)})
    all_nodes = AllNodes("me", routes, peers)
    call = asyncio.create_task(
        all_nodes.call_other_nodes(
            PATH, admin_pb2.ListShardsRequest(), admin_pb2.ListShardsResponse, skip_failed=True
        )
    )
    async with asyncio.timeout(TIMEOUT_S):
        await handler.called.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
    await peers.channel(address).close()
