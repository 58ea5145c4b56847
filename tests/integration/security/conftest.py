"""Fixtures for the tests of identity and access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.security.auth_harness import AuthHarness
from tests.integration.server.conftest import harness, migrated_template, stopped_harness, url

__all__ = ["harness", "migrated_template", "stopped_harness", "url"]


@pytest.fixture
async def auth(tmp_path: Path) -> AsyncIterator[AuthHarness]:
    """A server that asks who calls, on SQLite."""
    harness = AuthHarness(f"sqlite:///{tmp_path}/liveness.db")
    await harness.start()
    yield harness
    await harness.stop()


@pytest.fixture
async def auth_on_each_database(url: str) -> AsyncIterator[AuthHarness]:
    harness = AuthHarness(url)
    await harness.start()
    yield harness
    await harness.stop()
