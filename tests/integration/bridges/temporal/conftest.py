"""A bridge in this process between a client and a server in Temporal's place. liveness is away unless a test starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from liveness.bridges.temporal.bridge import TemporalBridge
from liveness.bridges.temporal.settings import BridgeSettings
from tests.free_ports import free_port
from tests.integration.bridges.temporal.upstream_server import UpstreamServer

StartBridge = Callable[..., Awaitable[TemporalBridge]]


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamServer]:
    upstream = UpstreamServer()
    await upstream.start()
    yield upstream
    await upstream.stop()


@pytest.fixture
async def start_bridge(upstream: UpstreamServer) -> AsyncIterator[StartBridge]:
    bridges: list[TemporalBridge] = []

    async def start(**settings: Any) -> TemporalBridge:
        defaults: dict[str, Any] = {
            "upstream": (upstream.address,),
            "liveness": (f"127.0.0.1:{free_port()}",),
            "listen": "127.0.0.1:0",
        }
        bridge = TemporalBridge(BridgeSettings(**(defaults | settings)))
        await bridge.start()
        bridges.append(bridge)
        return bridge

    yield start
    for bridge in bridges:
        await bridge.stop()


@pytest.fixture
async def bridge(start_bridge: StartBridge) -> TemporalBridge:
    return await start_bridge()
