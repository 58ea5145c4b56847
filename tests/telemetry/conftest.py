from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.site import Site
from tests.shard.quiet import quiet

__all__ = ["quiet"]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A running server without a grace after its start."""
    site = await Site(f"sqlite:///{tmp_path}/liveness.db").start(takeover_grace_ms=0)
    yield site
    await site.stop()
