"""What is asked of other nodes comes to an end when one of them goes away in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from liveness.cluster.peers import Peers
from liveness.domain.errors import NodeLost
from liveness.frontend.routes import Member, Routes
from liveness.server.everywhere import Everywhere
from liveness.v1 import admin_pb2

PATIENCE_S = 10
PATH = "AdminService/ListShards"


class Silent(grpc.GenericRpcHandler):
    """A node that hears what it is asked, and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def never(request: bytes, context: object) -> bytes:
            self.asked.set()
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(never)


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, str]]:
    handler = Silent()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield handler, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_node_that_is_given_up_in_the_middle_of_a_call_is_left_out_or_named(
    silent: tuple[Silent, str],
) -> None:
    """Its channel is closed then, which ends the call without a status. Whoever waits must hear of it all the same."""
    handler, address = silent
    routes, peers = Routes(1), Peers("me")
    routes.replace([Member("gone", address)], {0: ("gone", 1)})
    everywhere = Everywhere("me", routes, peers)

    async def ended(call: asyncio.Task[list[admin_pb2.ListShardsResponse]]) -> None:
        await handler.asked.wait()
        handler.asked.clear()
        peers.meet(())
        await asyncio.wait([call], timeout=PATIENCE_S)
        assert call.done()
        assert not call.cancelled()

    def ask(*, patient: bool) -> asyncio.Task[list[admin_pb2.ListShardsResponse]]:
        return asyncio.create_task(
            everywhere.ask_others(
                PATH, admin_pb2.ListShardsRequest(), admin_pb2.ListShardsResponse, patient=patient
            )
        )

    async with asyncio.timeout(3 * PATIENCE_S):
        await ended(patient := ask(patient=True))
        assert patient.result() == []
        await ended(impatient := ask(patient=False))
        with pytest.raises(NodeLost):
            impatient.result()


async def test_who_asks_may_go_away(silent: tuple[Silent, str]) -> None:
    handler, address = silent
    routes, peers = Routes(1), Peers("me")
    routes.replace([Member("slow", address)], {0: ("slow", 1)})
    everywhere = Everywhere("me", routes, peers)
    call = asyncio.create_task(
        everywhere.ask_others(PATH, admin_pb2.ListShardsRequest(), admin_pb2.ListShardsResponse, patient=True)
    )
    async with asyncio.timeout(PATIENCE_S):
        await handler.asked.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
    await peers.channel(address).close()
