"""Three nodes behind an Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.databases import PostgresServer
from tests.end_to_end.conftest import say as say
from tests.end_to_end.server_process import ServerProcess
from tests.envoy.proxy import Envoy, envoy

NODES = 3


class Behind(NamedTuple):
    envoy: Envoy
    nodes: list[ServerProcess]


@pytest.fixture
async def behind(postgres: PostgresServer, postgres_database: str, tmp_path: Path) -> AsyncIterator[Behind]:
    program = envoy()
    if program is None:
        pytest.skip("there is no wheel of Envoy for this platform")
    environ = {"LIVENESS_NODE_LEASE_MS": "1500"}
    nodes = [ServerProcess(postgres.url(postgres_database), shards=8, environ=environ) for _ in range(NODES)]
    try:
        for node in nodes:
            await node.start()
        async with Envoy(program, tmp_path, [node.address for node in nodes]) as front:
            await front.healthy(NODES)
            yield Behind(front, nodes)
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
