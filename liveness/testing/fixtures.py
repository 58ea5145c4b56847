"""The pytest fixtures. A conftest.py loads them with `pytest_plugins = ["liveness.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from liveness.testing.local_server import LocalServer


@pytest.fixture
def liveness_server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server whose clock stands still until the test moves it."""
    with LocalServer(tmp_path) as server:
        yield server


@pytest.fixture
def live_liveness_server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server whose clock is the real one."""
    with LocalServer(tmp_path, manual_clock=False) as server:
        yield server
