"""Background parts of a server that fail unexpectedly."""

import asyncio
from pathlib import Path

import pytest

from liveness.app import Server
from liveness.cluster.membership import Membership
from liveness.config.settings import Settings
from liveness.tasks.queue_runner import QueueRunner


@pytest.mark.parametrize("part", [Membership, QueueRunner])
async def test_a_server_ends_when_one_of_its_parts_fails(
    part: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: object) -> None:
        raise RuntimeError("unexpected failure")

    monkeypatch.setattr(part, "run", fail)
    async with Server(Settings(db=f"sqlite:///{tmp_path}/t.db", listen="127.0.0.1:0", shards=4)) as server:
        error = await asyncio.wait_for(asyncio.shield(server.node.broken), 10)
    assert "unexpected failure" in str(error)
