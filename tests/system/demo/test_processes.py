"""The errors of a demo that cannot start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from liveness.clock import SystemClock
from liveness.demo.plan import DemoFailed, fast
from liveness.demo.processes import DemoProcesses


def cast(folder: Path, **variables: str) -> DemoProcesses:
    plan = fast(workers=None, activities=None, seed=1)
    return DemoProcesses(plan, folder, {**os.environ, **variables}, SystemClock())


async def test_a_server_that_cannot_start_is_reported_with_its_last_output(tmp_path: Path) -> None:
    (tmp_path / "liveness.db").write_text("this is no database, whatever its name says " * 100)
    players = cast(tmp_path)
    try:
        with pytest.raises(DemoFailed, match=r"the server did not start: .*liveness\.db"):
            await players.start_server()
    finally:
        await players.stop_all()


async def test_settings_for_other_servers_do_not_reach_the_demos_server(tmp_path: Path) -> None:
    players = cast(tmp_path, LIVENESS_NAMESPACES="somebody-elses", LIVENESS_CONFIG="/nowhere.toml")
    try:
        await players.start_server()

        assert players.address.startswith("127.0.0.1:")
        players.check_alive()
    finally:
        await players.stop_all()


async def test_an_unplanned_worker_death_ends_the_demo(tmp_path: Path) -> None:
    players = cast(tmp_path)
    players.address = "127.0.0.1:1"
    try:
        planned, unplanned = players.start_worker(), players.start_worker()
        players.kill(planned)
        planned.process.wait()
        players.check_alive()

        unplanned.process.kill()
        unplanned.process.wait()
        with pytest.raises(DemoFailed, match="worker-2 ended by itself"):
            players.check_alive()
    finally:
        await players.stop_all()
