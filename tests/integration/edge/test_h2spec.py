"""h2spec, the suite of others for HTTP/2 servers, where it is installed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil

import pytest

from tests.integration.edge.edge_server import EdgeServer

FAILED_MAX = 1
"""A preface that is none: the connection is closed with a reset, because nobody reads what follows; h2spec waits for an end."""


async def test_h2spec_passes(server: EdgeServer) -> None:
    h2spec = os.environ.get("LIVENESS_H2SPEC") or shutil.which("h2spec")
    if not h2spec:
        pytest.skip("h2spec is not installed: go install github.com/summerwind/h2spec/cmd/h2spec@latest")
    running = await asyncio.create_subprocess_exec(
        h2spec, "-h", "127.0.0.1", "-p", str(server.port), stdout=asyncio.subprocess.PIPE
    )
    output = (await running.communicate())[0].decode()
    summary = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", output)
    assert summary, output
    tests, passed, _, failed = map(int, summary.groups())
    assert tests >= 145, output
    assert failed <= FAILED_MAX, output
    assert passed >= 144, output
