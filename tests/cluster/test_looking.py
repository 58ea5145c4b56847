"""How often a node looks at the registry."""

from __future__ import annotations

from pathlib import Path

from liveness.app import Server
from liveness.clock import SystemClock
from liveness.cluster.lookout import STEP_MS_MAX
from liveness.cluster.membership import LOOK_AGAIN_MS_MIN, look_every_ms
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


def test_looks_are_frequent_enough_for_a_lease_to_end_when_it_should() -> None:
    """However long the lease, and though of the time between two looks a step counts at most."""
    for lease_ms in (500, 4_000, 10_000, 600_000):
        assert look_every_ms(lease_ms) < STEP_MS_MAX
        assert look_every_ms(lease_ms) <= lease_ms / 8
