from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.http.http_client import Client
from tests.integration.http.http_harness import HttpHarness


@pytest.fixture
async def stopped_harness(tmp_path: Path) -> AsyncIterator[HttpHarness]:
    """A harness whose server the test starts itself."""
    http_harness = HttpHarness(f"sqlite:///{tmp_path}/liveness.db")
    yield http_harness
    await http_harness.close()


@pytest.fixture
async def http_harness(stopped_harness: HttpHarness) -> HttpHarness:
    return await stopped_harness.open()


@pytest.fixture
def client(http_harness: HttpHarness) -> Client:
    return http_harness.client
