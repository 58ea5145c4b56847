"""How often a node looks at the registry."""

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


async def test_trouble_without_end_does_not_make_a_node_look_without_a_pause(tmp_path: Path) -> None:
    """Each call that fails at a dead node asks for a look, which costs the database a transaction."""
    clock = SystemClock()
    async with Server(Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0")) as server:
        began_ms, before = clock.monotonic_ms(), await heartbeat_count_of(server)
        while await heartbeat_count_of(server) < before + 5:
            server.membership.refresh_soon()
        passed_ms = clock.monotonic_ms() - began_ms
        assert passed_ms >= 4 * REFRESH_GAP_MS_MIN


async def test_news_are_looked_at_long_before_the_next_look_is_due(tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0", node_lease_ms=600_000)
    async with asyncio.timeout(30), Server(settings) as server:
        before = await heartbeat_count_of(server)
        server.membership.refresh_soon()
        while await heartbeat_count_of(server) == before:
            await asyncio.sleep(0)
