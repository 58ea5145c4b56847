from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.quiet_logs import quiet
from tests.integration.server.server_harness import ServerHarness

__all__ = ["quiet"]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ServerHarness]:
    """A running server without a take-over grace."""
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start(takeover_grace_ms=0)
    yield harness
    await harness.stop()
