"""How the composition root connects a server's components."""

from __future__ import annotations

from pathlib import Path

from liveness.engine.listener import NodeListener
from liveness.testing import ManualClock, Server, Settings


async def test_every_component_that_listens_to_the_node_is_registered_once(tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite:///{tmp_path / 'liveness.db'}", listen="127.0.0.1:0", shards=4)
    async with Server(settings, clock=ManualClock(), self_driven=False) as server:
        components = [part for part in vars(server).values() if isinstance(part, NodeListener)]
        registered = server.node._listeners
        assert len(components) >= 8
        assert all(registered.count(component) == 1 for component in components)
        assert registered[-1] is server.membership, (
            "a shard's callers go on when every component knows the shard"
        )


async def test_a_second_stop_does_nothing(tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite:///{tmp_path / 'liveness.db'}", listen="127.0.0.1:0", shards=4)
    server = Server(settings, clock=ManualClock(), self_driven=False)
    await server.start()
    await server.stop()
    await server.stop()
