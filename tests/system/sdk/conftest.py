"""One server for the tests that do not harm it; each test has its own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from liveness.sdk import Client, Worker
from tests.system.sdk.server_process import LivenessServer, running_server

Make = Callable[..., Worker]

_namespaces = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivenessServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LivenessServer]:
    """A server that the test may stop, kill and restart."""
    with running_server(tmp_path) as server:
        yield server


@pytest.fixture
def namespace() -> str:
    return f"namespace-{next(_namespaces)}"


@pytest.fixture
def make(server: LivenessServer, namespace: str) -> Make:
    """Make workers of the test's namespace."""
    return partial(Worker, server.address, namespace=namespace, task_queue="queue", lease=60)


@pytest.fixture
async def client(server: LivenessServer, namespace: str) -> AsyncIterator[Client]:
    async with Client(server.address, namespace=namespace) as client:
        yield client
