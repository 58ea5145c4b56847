"""How often a node looks at the registry."""

from __future__ import annotations

import asyncio
from pathlib import Path

from liveness.app import Server
from liveness.clock import SystemClock
from liveness.cluster.membership import LOOK_AGAIN_MS_MIN
from liveness.settings import Settings


async def beat_of(server: Server) -> int:
    [row] = (await server.store.look_at_cluster()).nodes
    return row.beat


async def test_trouble_without_end_does_not_make_a_node_look_without_a_pause(tmp_path: Path) -> None:
    """Each call that fails at a dead node asks for a look, which costs the database a transaction."""
    clock = SystemClock()
    async with Server(Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0")) as server:
        began_ms, before = clock.monotonic_ms(), await beat_of(server)
        while await beat_of(server) < before + 5:
            server.membership.look_soon()
        passed_ms = clock.monotonic_ms() - began_ms
        assert passed_ms >= 4 * LOOK_AGAIN_MS_MIN


async def test_news_are_looked_at_long_before_the_next_look_is_due(tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0", node_lease_ms=600_000)
    async with asyncio.timeout(30), Server(settings) as server:
        before = await beat_of(server)
        server.membership.look_soon()
        while await beat_of(server) == before:
            await asyncio.sleep(0)
