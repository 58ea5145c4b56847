"""The interval at which a node reads the registry."""

from __future__ import annotations

import asyncio
from pathlib import Path

from liveness.app import Server
from liveness.clock import SystemClock
from liveness.cluster.membership import REFRESH_GAP_MS_MIN
from liveness.config.settings import Settings


async def heartbeat_count_of(server: Server) -> int:
    [row] = (await server.store.read_cluster()).nodes
    return row.beat


async def test_continuous_failures_do_not_make_a_node_read_the_registry_continuously(tmp_path: Path) -> None:
    """Each failed call to a dead node requests a read, which costs the database a transaction."""
    clock = SystemClock()
    async with Server(Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0")) as server:
        began_ms, before = clock.monotonic_ms(), await heartbeat_count_of(server)
        while await heartbeat_count_of(server) < before + 5:
            server.membership.refresh_soon()
        passed_ms = clock.monotonic_ms() - began_ms
        assert passed_ms >= 4 * REFRESH_GAP_MS_MIN


async def test_a_requested_refresh_happens_long_before_the_next_regular_one(tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0", node_lease_ms=600_000)
    async with asyncio.timeout(30), Server(settings) as server:
        before = await heartbeat_count_of(server)
        server.membership.refresh_soon()
        while await heartbeat_count_of(server) == before:
            await asyncio.sleep(0)
