"""One server for the tests that do not harm it, and a namespace and a group of workers for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.system.server.conftest import NO_TAKEOVER_GRACE
from tests.system.server.conftest import report_result as report_result
from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.tcp_proxy import Proxy
from tests.system.worker_processes.worker_processes import WorkerGroup

SHARDS = 4

_namespaces = count(1)


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server that stays up; leases end as soon as they may."""
    database = tmp_path_factory.mktemp("server") / "liveness.db"
    server = ServerProcess(f"sqlite:///{database}", shards=SHARDS, environ=NO_TAKEOVER_GRACE)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def namespace_client(server: ServerProcess) -> AsyncIterator[NamespaceClient]:
    async with NamespaceClient(server.address, f"namespace-{next(_namespaces)}") as namespace_client:
        yield namespace_client


@pytest.fixture
async def worker_group(
    server: ServerProcess, namespace_client: NamespaceClient, tmp_path: Path
) -> AsyncIterator[WorkerGroup]:
    worker_group = WorkerGroup(tmp_path, namespace_client.namespace, server.address, [])
    yield worker_group
    await worker_group.close()


@pytest.fixture
async def proxy(server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(server.address) as proxy:
        yield proxy
