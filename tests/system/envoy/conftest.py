"""Three nodes behind an Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.databases import PostgresServer
from tests.system.envoy.proxy import Envoy, envoy
from tests.system.server.conftest import report_result as report_result
from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.tcp_proxy import Proxy

NODES = 3


class EnvoyCluster(NamedTuple):
    envoy: Envoy
    nodes: list[ServerProcess]
    way_to_database: Proxy
    """The way of the last node to the database."""


@pytest.fixture
async def envoy_cluster(
    postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> AsyncIterator[EnvoyCluster]:
    program = envoy()
    if program is None:
        pytest.skip("there is no wheel of Envoy for this platform")
    environ = {"LIVENESS_NODE_LEASE_MS": "1500"}
    url = postgres.url(postgres_database)
    address = urlsplit(url).netloc.rpartition("@")[2]
    async with Proxy(address) as way:
        ways = [url] * (NODES - 1) + [url.replace(address, way.address)]
        nodes = [ServerProcess(db, shards=8, environ=environ) for db in ways]
        try:
            for node in nodes:
                await node.start()
            async with Envoy(program, tmp_path, [node.address for node in nodes]) as front:
                await front.wait_healthy(NODES)
                yield EnvoyCluster(front, nodes, way)
        finally:
            await asyncio.gather(*(node.close() for node in nodes))
