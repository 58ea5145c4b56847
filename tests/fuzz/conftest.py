from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fuzz.fuzzer import Target
from tests.integration.quiet_logs import quiet
from tests.integration.server.conftest import migrated_template, url
from tests.system.server.conftest import report_result

__all__ = ["migrated_template", "quiet", "report_result", "url"]


@pytest.fixture
async def target(url: str) -> AsyncIterator[Target]:
    """A server on each database that drives itself by the real clock."""
    target = await Target(url).start()
    yield target
    await target.stop()
