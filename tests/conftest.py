"""Fixtures that tests of all parts share. Databases are real ones: see `tests.databases`."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from liveness.store.sql import SqlStore
from tests.databases import PostgresServer, StoreDatabase, postgres_store_database, sqlite_store_database

# Read when gRPC is loaded. What it does in a process that was forked off, to start a program there, crashes that
# process now and then while calls are on their way here.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# A shared machine may stall for longer than any deadline that would mean something.
settings.register_profile("liveness", deadline=None, print_blob=True)
settings.load_profile("liveness")
# For who wants to know whether a test fails, and not by which smallest example: finding that takes minutes.
settings.register_profile(
    "hasty", settings.get_profile("liveness"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


BROWSER_TESTS = re.compile(r"tests/system/dashboard/")
SHARED_CLUSTER_TESTS = tuple(
    f"tests/system/cluster/test_{name}.py" for name in ("activities", "orders", "quotas")
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests with a browser go to one process, so that there is one browser at a time; so do those of a file that share a
    cluster. The marks that xdist has for this do not reach it: it looks for them in a place that pytest has given up."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupedScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if BROWSER_TESTS.match(nodeid):
                return "browser"
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
    """The name of an empty database on `postgres`; `postgres.url(name)` leads to it. Of this test's own, because the
    processes that tests start may outlive what they leave behind."""
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def _reused_database(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def emptied_database(postgres: PostgresServer, _reused_database: str) -> Iterator[str]:
    """The same for tests that let go of it themselves: one after the other, which takes a tenth of the time."""
    yield _reused_database
    postgres.empty_database(_reused_database)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Whoever uses this, or a fixture below, runs once on each database."""
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
    """An opened store. `store_database.open()` gives another on the same data, as after a crash."""
    return await store_database.open()
