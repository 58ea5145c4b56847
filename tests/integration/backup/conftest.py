"""The database of a node, with rows in every table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.engine.engine import activity
from tests.integration.quiet_logs import quiet
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import ServerHarness

__all__ = ["quiet"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder / "liveness.db"


@pytest.fixture
async def harness(path: Path) -> AsyncIterator[ServerHarness]:
    harness = await ServerHarness(f"sqlite:///{path}").start()
    yield harness
    await harness.stop()


@pytest.fixture
async def activity_client(harness: ServerHarness) -> ActivityClient:
    """A database with an active worker that holds an activity, a shut-down worker and an available activity."""
    activity_client = ActivityClient(harness)
    await activity_client.beat("stays", bound_activities=[activity("kept")])
    await activity_client.beat("leaves", bound_activities=[activity("moved")])
    await harness.shut_down("leaves")
    await harness.configure(cleanup_delay_ms=5_000)
    await activity_client.schedule("photo")
    await harness.advance(1_000)
    return activity_client
