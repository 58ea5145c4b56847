"""Fixtures shared by all tests. Databases are real ones: see `tests.databases`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from liveness.store.sql import SqlStore
from tests.databases import PostgresServer, StoreDatabase, postgres_store_database, sqlite_store_database

# gRPC reads this when it is loaded. Its fork support sometimes crashes a forked process that starts a program
# while calls are in flight.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests use the native edge where it is installed. With LIVENESS_TEST_LISTENER=python, they and the processes that they start
# behave as if it were not.
if os.environ.get("LIVENESS_TEST_LISTENER") == "python":
    sys.modules["liveness_edge"] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    os.environ["LIVENESS_LISTENER"] = "python"

# A shared machine may stall for longer than any deadline that would mean something.
settings.register_profile("liveness", deadline=None, print_blob=True)
settings.load_profile("liveness")
# For runs that only need to know whether a test fails: shrinking to the smallest example takes minutes.
settings.register_profile(
    "hasty", settings.get_profile("liveness"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


BROWSER_TESTS = re.compile(r"tests/system/dashboard/")
SHARED_CLUSTER_TESTS = tuple(
    f"tests/system/cluster/test_{name}.py" for name in ("activities", "orders", "quotas")
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run browser tests in one process, so that only one browser runs at a time; likewise the tests of a file
    that share a cluster. xdist's own group marks do not work here: it looks for them where pytest no longer
    stores them."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupedScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if BROWSER_TESTS.match(nodeid):
                return "browser"
            if nodeid.startswith("tests/system/temporal/"):
                return "temporal"  # one server for all of them
            if nodeid.startswith(SHARED_CLUSTER_TESTS):
                return nodeid.partition("::")[0]
            scope: str = super()._split_scope(nodeid)
            return scope

    return GroupedScheduling(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test process, started by the first test that needs it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Iterator[str]:
    """The name of an empty database on `postgres`; `postgres.url(name)` is its URL. Each test gets its own,
    because processes that tests start may outlive the test."""
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def _reused_database(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def emptied_database(postgres: PostgresServer, _reused_database: str) -> Iterator[str]:
    """A reused empty database, for tests that close their connections themselves; this takes a tenth of the
    time."""
    yield _reused_database
    postgres.empty_database(_reused_database)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Tests that use this fixture, or one below, run once on each database."""
    chosen: str = request.param
    return chosen


@pytest.fixture
async def store_database(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[StoreDatabase]:
    """An empty database, without tables."""
    if dialect == "sqlite":
        store_database = sqlite_store_database(tmp_path)
    else:
        store_database = postgres_store_database(
            request.getfixturevalue("postgres"), request.getfixturevalue("emptied_database")
        )
    yield store_database
    await store_database.close()


@pytest.fixture
async def store(store_database: StoreDatabase) -> SqlStore:
    """An open store. `store_database.open()` gives another one on the same data, as after a crash."""
    return await store_database.open()
