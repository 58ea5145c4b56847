from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.quiet_logs import quiet
from tests.integration.routing.routed_cluster import Cluster

__all__ = ["quiet"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two owners and a frontend."""
    cluster = await Cluster(tmp_path).start("a", "b")
    yield cluster
    await cluster.stop()
