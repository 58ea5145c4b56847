from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.frontend.cluster import Cluster
from tests.shard.quiet import quiet

__all__ = ["quiet"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two owners and a door."""
    cluster = await Cluster(tmp_path).start("a", "b")
    yield cluster
    await cluster.stop()
