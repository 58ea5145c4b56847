"""One server for the tests that do it no harm, and a namespace and a crew of workers for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.end_to_end.conftest import EXPOSED
from tests.end_to_end.conftest import say as say
from tests.end_to_end.server_process import ServerProcess
from tests.sdk_end_to_end.proxy import Proxy
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew

SHARDS = 4

_namespaces = count(1)


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """Stays up; leases end as soon as they may."""
    database = tmp_path_factory.mktemp("server") / "liveness.db"
    server = ServerProcess(f"sqlite:///{database}", shards=SHARDS, environ=EXPOSED)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def record(server: ServerProcess) -> AsyncIterator[Record]:
    async with Record(server.address, f"namespace-{next(_namespaces)}") as record:
        yield record


@pytest.fixture
async def crew(server: ServerProcess, record: Record, tmp_path: Path) -> AsyncIterator[Crew]:
    crew = Crew(tmp_path, record.namespace, server.address, [])
    yield crew
    await crew.dismiss()


@pytest.fixture
async def proxy(server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(server.address) as proxy:
        yield proxy
