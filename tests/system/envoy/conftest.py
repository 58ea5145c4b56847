"""Three nodes behind an Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.databases import PostgresServer
from tests.system.envoy.proxy import Envoy, envoy
from tests.system.server.conftest import report_result as report_result
from tests.system.server.server_process import ServerProcess

NODES = 3


class EnvoyCluster(NamedTuple):
    envoy: Envoy
    nodes: list[ServerProcess]


@pytest.fixture
async def envoy_cluster(
    postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> AsyncIterator[EnvoyCluster]:
    program = envoy()
    if program is None:
        pytest.skip("there is no wheel of Envoy for this platform")
    environ = {"LIVENESS_NODE_LEASE_MS": "1500"}
    nodes = [ServerProcess(postgres.url(postgres_database), shards=8, environ=environ) for _ in range(NODES)]
    try:
        for node in nodes:
            await node.start()
        async with Envoy(program, tmp_path, [node.address for node in nodes]) as front:
            await front.wait_healthy(NODES)
            yield EnvoyCluster(front, nodes)
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
