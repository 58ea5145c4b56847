"""The TCP proxy injects the faults that other tests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from tests.system.worker_processes.tcp_proxy import ForwardMode, Proxy
from tests.system.worker_processes.worker_processes import SECONDS_MAX, until


class ProxiedConnection(NamedTuple):
    """A connection through the proxy, seen from both ends."""

    proxy: Proxy
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    async def ask(self, data: bytes) -> None:
        self.client[1].write(data)
        await self.client[1].drain()

    async def answer(self, data: bytes) -> None:
        self.server[1].write(data)
        await self.server[1].drain()


@pytest.fixture
async def proxied() -> AsyncIterator[ProxiedConnection]:
    arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    listener = await asyncio.start_server(lambda *ends: arrived.put_nowait(ends), "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with Proxy(f"{host}:{port}") as proxy:
        client = await asyncio.open_connection(*proxy.address.split(":"))
        server = await arrived.get()
        yield ProxiedConnection(proxy, client, server)
        for _, writer in (client, server):
            writer.transport.abort()
    listener.close()
    await listener.wait_closed()


async def test_the_proxy_forwards_in_both_directions(proxied: ProxiedConnection) -> None:
    await proxied.ask(b"ping")
    assert await _read(proxied.server[0], 4) == b"ping"
    await proxied.answer(b"pong")
    assert await _read(proxied.client[0], 4) == b"pong"


async def test_held_data_arrives_late_and_in_order(proxied: ProxiedConnection) -> None:
    proxied.proxy.black_hole(ForwardMode.HOLD)
    await proxied.ask(b"first ")
    await proxied.ask(b"second")
    proxied.proxy.heal()
    assert await _read(proxied.server[0], 12) == b"first second"


async def test_a_connection_that_lost_data_is_cut_when_the_network_heals(
    proxied: ProxiedConnection,
) -> None:
    proxied.proxy.lose_answers()
    await proxied.answer(b"lost")
    await proxied.ask(b"heard")
    assert await _read(proxied.server[0], 5) == b"heard"
    await until(lambda: any(connection.damaged for connection in proxied.proxy.connections))
    proxied.proxy.heal()
    assert await _rest(proxied.client[0]) == b""
    assert await _rest(proxied.server[0]) == b""


async def test_a_black_hole_hides_a_closed_peer(proxied: ProxiedConnection) -> None:
    proxied.proxy.black_hole()
    proxied.client[1].transport.abort()
    await until(lambda: any(connection.damaged for connection in proxied.proxy.connections))
    assert not proxied.server[0].at_eof()
    proxied.proxy.heal()
    assert await _rest(proxied.server[0]) == b""


@pytest.mark.parametrize("towards_server", [True, False])
async def test_a_half_closed_connection_still_carries_the_other_direction(
    proxied: ProxiedConnection, towards_server: bool
) -> None:
    near, far = (proxied.client, proxied.server) if towards_server else (proxied.server, proxied.client)
    proxied.proxy.half_close(towards_server=towards_server)
    assert await _rest(far[0]) == b""
    near[1].write(b"into the void")
    far[1].write(b"still heard")
    assert await _read(near[0], 11) == b"still heard"


async def test_a_delay_keeps_the_order(proxied: ProxiedConnection) -> None:
    proxied.proxy.delay_seconds = 0.05
    await proxied.ask(b"late ")
    proxied.proxy.delay_seconds = 0.0
    await proxied.ask(b"later")
    assert await _read(proxied.server[0], 10) == b"late later"


async def _read(reader: asyncio.StreamReader, count: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(count), SECONDS_MAX)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return the data up to the end of the stream, graceful or not."""
    try:
        return await asyncio.wait_for(reader.read(), SECONDS_MAX)
    except ConnectionResetError:
        return b""
