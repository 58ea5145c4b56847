"""A node's database with something in every table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.site import Site
from tests.server.work import Work
from tests.shard.engine import activity
from tests.shard.quiet import quiet

__all__ = ["quiet"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder / "liveness.db"


@pytest.fixture
async def site(path: Path) -> AsyncIterator[Site]:
    site = await Site(f"sqlite:///{path}").start()
    yield site
    await site.stop()


@pytest.fixture
async def work(site: Site) -> Work:
    """One worker that holds something, one that has left, one activity to be had."""
    work = Work(site)
    await work.beat("stays", bound_activities=[activity("kept")])
    await work.beat("leaves", bound_activities=[activity("moved")])
    await site.shut_down("leaves")
    await site.configure(cleanup_delay_ms=5_000)
    await work.schedule("photo")
    await site.advance(1_000)
    return work
