"""Three nodes behind an Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc
import pytest

from tests.certificates import Authority, TlsFolder, make_tls_folder
from tests.databases import PostgresServer
from tests.system.envoy.proxy import Envoy, envoy
from tests.system.server.conftest import report_result as report_result
from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.tcp_proxy import Proxy

NODES = 3


class TlsServerProcess(ServerProcess):
    """A node that serves clients with TLS."""

    def __init__(self, db: str, files: TlsFolder, environ: dict[str, str]) -> None:
        super().__init__(db, shards=8, flags=files.flags, environ=environ)
        self._ca_pem = files.ca_file.read_bytes()

    def make_channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.address, grpc.ssl_channel_credentials(self._ca_pem))


class EnvoyCluster(NamedTuple):
    envoy: Envoy
    nodes: list[TlsServerProcess]
    way_to_database: Proxy
    """The way of the last node to the database."""


@pytest.fixture
async def envoy_cluster(
    postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> AsyncIterator[EnvoyCluster]:
    program = envoy()
    if program is None:
        pytest.skip("there is no wheel of Envoy for this platform")
    authority = Authority()
    files = make_tls_folder(tmp_path / "tls", authority)
    environ = {"LIVENESS_NODE_LEASE_MS": "1500"}
    url = postgres.url(postgres_database)
    address = urlsplit(url).netloc.rpartition("@")[2]
    async with Proxy(address) as way:
        ways = [url] * (NODES - 1) + [url.replace(address, way.address)]
        nodes = [TlsServerProcess(db, files, environ) for db in ways]
        try:
            for node in nodes:
                await node.start()
            async with Envoy(program, tmp_path, [node.address for node in nodes], files) as front:
                await front.wait_healthy(NODES)
                yield EnvoyCluster(front, nodes, way)
        finally:
            await asyncio.gather(*(node.close() for node in nodes))
