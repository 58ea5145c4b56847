from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.site import Site
from tests.shard.quiet import quiet

__all__ = ["quiet"]


@pytest.fixture
async def place(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A database on which the test itself starts a server."""
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path}/liveness.db"
    else:
        url = request.getfixturevalue("postgres").url(request.getfixturevalue("postgres_database"))
    site = Site(url)
    yield site
    await site.stop()


@pytest.fixture
async def site(place: Site) -> Site:
    """A running server on each database."""
    return await place.start()


@pytest.fixture
async def sqlite_site(tmp_path: Path) -> AsyncIterator[Site]:
    """A running server on SQLite, for what does not depend on the database."""
    site = await Site(f"sqlite:///{tmp_path}/liveness.db").start()
    yield site
    await site.stop()
