"""One server for the tests of this folder that do not stop it; each test has its own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.system.cli.server_processes import running_server
from tests.system.supervisor.supervised import Supervised

_namespaces = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def supervised(server: str, tmp_path: Path) -> Iterator[Supervised]:
    found = Supervised(tmp_path, server, f"namespace-{next(_namespaces)}")
    try:
        yield found
    finally:
        found.close()
