"""Fixtures for the tests of the native edge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.edge.edge_server import EdgeServer, running_edge


@pytest.fixture
async def server() -> AsyncIterator[EdgeServer]:
    async with running_edge() as server:
        yield server
