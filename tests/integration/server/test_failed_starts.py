"""A start that fails releases everything that it has taken until then."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from liveness.app import ListenFailed
from liveness.cluster.membership import Membership
from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.security.posture import ExposedListeners
from liveness.store.errors import ReadFailed, StoreUnusable
from liveness.testing import ManualClock, Server, Settings


def settings(folder: Path, port: int = 0) -> Settings:
    return Settings(
        db=f"sqlite:///{folder / 'liveness.db'}", listen=f"127.0.0.1:{port}", shards=4, takeover_grace_ms=0
    )


def tasks_beside_this_one() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def assert_nothing_is_left(server: Server, before: set[asyncio.Task[object]], folder: Path) -> None:
    assert tasks_beside_this_one() <= before
    with socket.socket() as probe:
        probe.settimeout(1)
        host, _, port = server.address.rpartition(":")
        assert probe.connect_ex((host, int(port))) != 0, "the port is still open"
    # The database has no owner any more, and a second try succeeds.
    async with Server(settings(folder), clock=ManualClock(), self_driven=False) as second:
        assert [row.node_id for row in (await second.store.read_cluster()).nodes] == [second.node.owner]


async def test_a_failed_join_releases_port_tasks_and_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Membership) -> None:
        await self._renew_and_plan()
        raise ReadFailed(detail="not now")

    before = tasks_beside_this_one()
    server = Server(settings(tmp_path), clock=ManualClock(), self_driven=False)
    with monkeypatch.context() as patch:
        patch.setattr(Membership, "join", fail)
        with pytest.raises(StoreUnusable, match="not now"):
            await server.start()
    await assert_nothing_is_left(server, before, tmp_path)
    await server.stop()  # harmless: nothing runs


async def test_a_start_that_fails_at_its_last_step_is_undone_as_a_stop_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Server) -> None:
        self._tasks.start(self.membership.run())
        raise RuntimeError("at the last step")

    before = tasks_beside_this_one()
    server = Server(settings(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(Server, "_start_background_work", fail)
        with pytest.raises(RuntimeError, match="at the last step"):
            await server.start()
    assert server.node.shards() == []
    await assert_nothing_is_left(server, before, tmp_path)


async def test_a_start_that_fails_before_it_listens_releases_the_port_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Server) -> None:
        raise RuntimeError("cannot build")

    before = tasks_beside_this_one()
    server = Server(settings(tmp_path), clock=ManualClock(), self_driven=False)
    with monkeypatch.context() as patch:
        patch.setattr(Server, "_build", fail)
        with pytest.raises(RuntimeError, match="cannot build"):
            await server.start()
    await assert_nothing_is_left(server, before, tmp_path)


async def test_a_port_in_use_releases_the_database(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenFailed):
            await Server(settings(tmp_path, taken.getsockname()[1])).start()
    async with Server(settings(tmp_path), clock=ManualClock(), self_driven=False) as second:
        assert len(second.node.shards()) == 4


async def test_a_lone_server_starts_although_its_predecessor_still_seems_to_own_everything(
    tmp_path: Path,
) -> None:
    """A renewal of the predecessor came late and registered it again. Its shards are taken when its lease is over."""
    async with Server(settings(tmp_path), clock=ManualClock(), self_driven=False):
        pass
    with sqlite3.connect(tmp_path / "liveness.db") as database:
        ghost = "('ghost', 'server', 'ghost:1', 'ghost', 1, '0', 1, 1000, 1, 0, 0, '')"
        database.execute("UPDATE shards SET owner = 'ghost'")
        database.execute(f"INSERT INTO nodes VALUES {ghost}")
        database.execute(
            "CREATE TRIGGER returning_ghost AFTER DELETE ON nodes WHEN OLD.node_id = 'ghost' "
            f"BEGIN INSERT INTO nodes VALUES {ghost}; END"
        )
    clock = ManualClock()
    async with Server(settings(tmp_path), clock=clock, self_driven=False) as server:
        assert not server.node.shards()
        clock.move(2_000)
        await server.membership.join()
        assert len(server.node.shards()) == 4


@pytest.mark.parametrize("exposed", [{"listen": "0.0.0.0:0"}, {"http": "0.0.0.0:0"}], ids=str)
def test_a_server_that_a_program_opens_to_the_network_needs_protection_too(
    tmp_path: Path, exposed: dict[str, Any]
) -> None:
    """Whoever starts it: the command line is not the only one."""
    values: dict[str, Any] = {"db": f"sqlite:///{tmp_path}/liveness.db", "listen": "127.0.0.1:0", **exposed}
    with pytest.raises(ExposedListeners, match=r"has no TLS and no authentication.*--insecure"):
        Server(Settings(**values))
    with pytest.raises(ExposedListeners, match=r"has no TLS and no authentication.*--insecure"):
        Frontend(FrontendSettings(nodes=("127.0.0.1:1",), **{"listen": "127.0.0.1:0", **exposed}))
    Server(Settings(**values, insecure=True))
    assert not list(tmp_path.iterdir())
