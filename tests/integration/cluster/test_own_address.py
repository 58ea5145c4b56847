"""No two living nodes have the same address, and no node judges processes of another machine by their number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from liveness.app import Server
from liveness.cluster.own_address import AddressTaken
from liveness.config.settings import Settings
from liveness.server.platform import Platform
from tests.databases import PostgresServer

SHARDS = 16
ENDED_PROCESS_ID = 2**22 + 1
"""Larger than any process id."""

Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(platform: Platform | None = None, **settings: Any) -> Server:
            values: dict[str, Any] = {
                "db": postgres.url(postgres_database),
                "listen": "127.0.0.1:0",
                "shards": SHARDS,
                "node_lease_ms": 2_000,
                "takeover_grace_ms": 0,
                **settings,
            }
            server = Server(Settings(**values), platform=platform or Platform())
            await server.start()
            stack.push_async_callback(server.stop)
            return server

        yield start


def machine_of_its_own(address: str, **platform: Any) -> Platform:
    """A machine on which `address` leads to its own server: an address that every machine has, such as 127.0.0.1."""
    own: list[str] = []  # the last one is that of the cluster

    def listener(**options: Any) -> Any:
        server: Any = grpc.aio.server(**options)
        add_port = server.add_insecure_port

        def add_insecure_port(listen: str) -> int:
            port: int = add_port(listen)
            own.append(f"127.0.0.1:{port}")
            return port

        server.add_insecure_port = add_insecure_port
        return server

    def connect(target: str, **options: Any) -> Any:
        return grpc.aio.insecure_channel(own[-1] if target == address else target, **options)

    return Platform(listener=listener, connect=connect, **platform)


async def nodes_of(server: Server) -> set[str]:
    return {row.node_id for row in (await server.store.read_cluster()).nodes}


async def test_a_node_whose_address_leads_to_another_one_does_not_start(start: Start) -> None:
    first = await start()
    with pytest.raises(AddressTaken) as refused:
        await start(advertise=first.cluster_address)
    assert refused.value.node_id == first.node.owner
    assert "--advertise" in str(refused.value)
    assert await nodes_of(first) == {first.node.owner}
    assert len(first.node.shards()) == SHARDS


async def test_a_node_does_not_start_while_another_machine_is_alive_under_the_same_address(
    start: Start,
) -> None:
    first = await start()
    with pytest.raises(AddressTaken) as refused:
        await start(
            machine_of_its_own(first.cluster_address, machine="another one"), advertise=first.cluster_address
        )
    assert refused.value.node_id == first.node.owner
    assert len(first.node.shards()) == SHARDS


async def test_of_two_nodes_that_started_at_once_at_one_address_the_later_one_stops(start: Start) -> None:
    first = await start(node_lease_ms=60_000)
    elsewhere = machine_of_its_own(first.cluster_address, machine="another one")
    async with first.membership._refresh_lock:
        await first.store.remove_nodes([first.node.owner])  # as if it had not registered yet
        second = await start(elsewhere, advertise=first.cluster_address)
    async with asyncio.timeout(30):
        error = await asyncio.shield(second.membership.address_taken)
    assert error.node_id == first.node.owner
    assert not first.membership.address_taken.done()


async def test_a_node_that_lost_its_address_to_a_later_one_stops(start: Start) -> None:
    """The address of a machine that was cut off for a while leads to its replacement by now."""
    replacement, first = await start(), await start()
    first.membership._own_row = first.membership._own_row._replace(
        address=replacement.cluster_address, started_wall_ms=0
    )
    first.membership._own_address._address = replacement.cluster_address
    async with asyncio.timeout(30):
        error = await asyncio.shield(first.membership.address_taken)
    assert error.node_id == replacement.node.owner


async def test_a_machine_that_shares_a_host_name_is_not_taken_for_dead(start: Start) -> None:
    first = await start(
        Platform(host="shared", machine="another one", process_id=ENDED_PROCESS_ID), node_lease_ms=60_000
    )
    second = await start(Platform(host="shared"))
    assert first.node.owner in await nodes_of(second)
    async with asyncio.timeout(30):
        while not second.node.shards():
            await asyncio.sleep(0.01)
    assert first.telemetry.shards_closed["lost"] == 0


async def test_an_ended_process_of_the_same_machine_is_known_to_be_gone(start: Start) -> None:
    first = await start(Platform(process_id=ENDED_PROCESS_ID), node_lease_ms=60_000)
    await start()
    async with asyncio.timeout(30):
        while not first.telemetry.shards_closed["lost"]:
            await asyncio.sleep(0.01)
