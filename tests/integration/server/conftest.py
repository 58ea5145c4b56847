from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from liveness.server.edge_listener import edge_is_installed
from liveness.store.database_identity import IDENTITY
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from tests.databases import PostgresServer
from tests.integration.quiet_logs import quiet
from tests.integration.server.server_harness import SHARDS, ServerHarness

__all__ = ["quiet"]


@pytest.fixture(scope="session")
async def migrated_template(postgres: PostgresServer) -> tuple[PostgresServer, str]:
    """A migrated database to copy: creating the tables takes longer than most tests here."""
    name = postgres.create_database()
    store = SqlStore(PostgresDatabase(postgres.url(name)))
    await store.open(SHARDS, "tests")
    await store.close()
    # A server refuses a copy of another database; a database without this row is taken for a new one.
    postgres.execute(f"DELETE FROM meta WHERE name = '{IDENTITY}'", name)
    return postgres, name


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, for each dialect."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path}/liveness.db"
        return
    server, template = request.getfixturevalue("migrated_template")
    name = server.create_database(template)
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
async def stopped_harness(url: str) -> AsyncIterator[ServerHarness]:
    """A harness whose server the test starts itself."""
    harness = ServerHarness(url)
    yield harness
    await harness.stop()


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    """A running server on each database."""
    return await stopped_harness.start()


ON_BOTH_LISTENERS = (
    "test_bad_input",
    "test_health_and_reflection",
    "test_listener_options",
    "test_request_bounds",
)
"""Modules whose tests on SQLite run with either listener; all others, with the native edge where it is installed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "listener" in metafunc.fixturenames and metafunc.module.__name__.endswith(ON_BOTH_LISTENERS):
        metafunc.parametrize("listener", ["edge", "python"] if edge_is_installed() else ["python"])


@pytest.fixture
def listener() -> str:
    return "auto"


@pytest.fixture
async def sqlite_harness(tmp_path: Path, listener: str) -> AsyncIterator[ServerHarness]:
    """A running server on SQLite, for tests that do not depend on the database."""
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start(listener=listener)
    yield harness
    await harness.stop()
