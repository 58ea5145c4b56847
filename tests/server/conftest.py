from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from tests.databases import PostgresServer
from tests.server.site import SHARDS, Site
from tests.shard.quiet import quiet

__all__ = ["quiet"]


@pytest.fixture(scope="session")
async def migrated(postgres: PostgresServer) -> tuple[PostgresServer, str]:
    """A database that has its tables already, to be copied: making them takes longer than most tests here."""
    name = postgres.create_database()
    store = SqlStore(PostgresDatabase(postgres.url(name)))
    await store.open(SHARDS, "tests")
    await store.close()
    return postgres, name


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database on each dialect."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path}/liveness.db"
        return
    server, template = request.getfixturevalue("migrated")
    name = server.create_database(template)
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
async def place(url: str) -> AsyncIterator[Site]:
    """A database on which the test itself starts a server."""
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
