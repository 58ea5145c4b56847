"""One server for all tests of this folder; each test has its own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.free_ports import free_port
from tests.system.cli.server_processes import running_server
from tests.system.cli.shell import Shell

_namespaces = count(1)


@pytest.fixture(scope="session")
def cluster_address() -> str:
    """Where frontends reach the server."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, cluster_address: str) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--cluster-listen", cluster_address) as address:
        yield address


@pytest.fixture
def shell(server: str) -> Shell:
    return Shell(server, f"namespace-{next(_namespaces)}")
