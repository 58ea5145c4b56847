"""A database for each cluster, and clusters that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from tests.databases import PostgresServer, StoreDatabase, postgres_store_database
from tests.system.cluster.nodes import Cluster
from tests.system.server.conftest import report_result as report_result

MakeCluster = Callable[..., Cluster]


class ClusterDatabase(NamedTuple):
    """A test's own database."""

    url: str
    store_database: StoreDatabase


@pytest.fixture
def cluster_database(postgres: PostgresServer, postgres_database: str) -> ClusterDatabase:
    return ClusterDatabase(
        postgres.url(postgres_database), postgres_store_database(postgres, postgres_database)
    )


@pytest.fixture
async def make_cluster() -> AsyncIterator[MakeCluster]:
    async with AsyncExitStack() as stack:

        def make(dbs: str | list[str], **options: Any) -> Cluster:
            cluster = Cluster(dbs, **options)
            stack.push_async_callback(cluster.close)
            return cluster

        yield make


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="module")
async def shared_cluster(postgres: PostgresServer, shared_database: str) -> AsyncIterator[Cluster]:
    """A cluster that the tests of one file share; each test has its own namespace, and none harms the cluster.

    It is not shared by several files, because three idle nodes cost the other tests more than a new start.
    """
    cluster = Cluster(postgres.url(shared_database))
    await cluster.start()
    yield cluster
    await cluster.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.replace("[", "-").replace("]", "")
