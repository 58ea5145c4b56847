"""An empty database with the guard's table and a protected table, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.fencing.fenced_database import FencedDatabase


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'fenced.db'}"
    address: str = request.getfixturevalue("postgres").url(request.getfixturevalue("postgres_database"))
    return address


@pytest.fixture
async def database(dialect: str, url: str) -> AsyncIterator[FencedDatabase]:
    database = FencedDatabase(dialect, url)
    await database.prepare()
    yield database
    await database.close()
