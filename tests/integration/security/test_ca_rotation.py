"""All authorities are replaced while calls go on: that of the cluster's port, that of the public listeners and that of clients.

No call fails, no lease ends and no shard moves, because everybody trusts both authorities in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from liveness.app import Server
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.config.settings import Settings
from liveness.frontend.app import Frontend
from liveness.security.certificates import create_certificates
from liveness.v1 import cluster_pb2, service_pb2, worker_pb2
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.certificates import Authority, replace
from tests.databases import PostgresServer
from tests.integration.security.tls_server import OWN_CONNECTION, connect

SHARDS = 8
NAMESPACE = "default"
WORKERS = 16
CALL_TIMEOUT_S = 30.0


class Authorities:
    """Those of one generation."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.public = Authority(f"{name} public CA")
        self.clients = Authority(f"{name} client CA")
        client = self.clients.issue_client("worker")
        self.client = client.cert_pem, client.key_pem()
        # Authorities of clusters all have the same name, and differ in their key.
        create_certificates(self.folder, ["127.0.0.1"], datetime.now(UTC), days=1)

    def cluster_ca(self) -> bytes:
        return (self.folder / "ca.pem").read_bytes()


class Files:
    """The files of one process."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._kind = kind

    def trust(self, *trusted: Authorities) -> None:
        replace(self._folder / "cluster-ca.pem", b"".join(each.cluster_ca() for each in trusted))
        replace(self._folder / "clients.pem", b"".join(each.clients.cert_pem for each in trusted))

    def issue(self, authorities: Authorities) -> None:
        """Write certificates of these authorities. Two processes never share one."""
        create_certificates(authorities.folder, ["127.0.0.1"], datetime.now(UTC), days=1)
        for end in ("pem", "key"):
            source = authorities.folder / f"{self._kind}.{end}"
            replace(self._folder / f"cluster.{end}", source.read_bytes())
        authorities.public.issue_server().write(self._folder / "server.pem", self._folder / "server.key")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "cluster_cert_file": f"{self._folder}/cluster.pem",
            "cluster_key_file": f"{self._folder}/cluster.key",
            "cluster_ca_file": f"{self._folder}/cluster-ca.pem",
            "tls_cert_file": f"{self._folder}/server.pem",
            "tls_key_file": f"{self._folder}/server.key",
            "tls_client_ca_file": f"{self._folder}/clients.pem",
            "tls_client_auth": "required",
        }


class Load:
    """Workers that heartbeat at every node and at the frontend, each on one connection that stays and on a new one each time."""

    def __init__(self, addresses: list[str], authorities: Authorities) -> None:
        self._addresses = addresses
        self.ca = authorities.public.cert_pem
        self.client = authorities.client
        self.counts = {f"{address} {kind}": 0 for address in addresses for kind in ("kept", "new")}
        self.epochs: dict[str, set[int]] = {}
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for address in self._addresses:
            self._tasks.append(asyncio.create_task(self._keep_beating(address)))
            self._tasks.append(asyncio.create_task(self._beat_on_new_connections(address)))

    async def progress(self) -> None:
        """Return when every task has had several calls answered, each about workers on all nodes."""
        before = dict(self.counts)
        async with asyncio.timeout(120):
            while any(self.counts[name] < before[name] + 2 for name in self.counts):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _keep_beating(self, address: str) -> None:
        async with connect(address, self.ca, *self.client) as channel:
            while not self._is_over:
                await self._beat(channel, f"{address} kept")

    async def _beat_on_new_connections(self, address: str) -> None:
        while not self._is_over:
            async with connect(address, self.ca, *self.client) as channel:
                await self._beat(channel, f"{address} new")

    async def _beat(self, channel: Any, name: str) -> None:
        stub: Any = LivenessServiceStub(channel)
        beats = [
            worker_pb2.WorkerHeartbeat(worker_instance_key=f"{name} {number}", session_id="s")
            for number in range(WORKERS)
        ]
        answer = await stub.RecordWorkerHeartbeats(
            service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=beats),
            timeout=CALL_TIMEOUT_S,
        )
        for beat, item in zip(beats, answer.items, strict=True):
            assert not item.HasField("status"), item
            self.epochs.setdefault(beat.worker_instance_key, set()).add(item.result.lease_epoch)
        self.counts[name] += 1


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_authorities_rotate_under_load_without_a_failed_call_or_a_lost_lease(
    postgres: PostgresServer, postgres_database: str, tmp_path: Path, stack: AsyncExitStack
) -> None:
    old, new = Authorities(tmp_path, "old"), Authorities(tmp_path, "new")
    files = [Files(tmp_path / name, kind) for name, kind in (("a", "node"), ("b", "node"), ("f", "frontend"))]
    for each in files:
        each.trust(old)
        each.issue(old)
    nodes = [
        await stack.enter_async_context(_node(postgres.url(postgres_database), each)) for each in files[:2]
    ]
    while not all(node.membership.is_fully_serving and node.node.shards() for node in nodes):
        await nodes[0].routes.wait_for_change(SystemClock(), 50)
    frontend = await stack.enter_async_context(
        Frontend(
            FrontendSettings(
                nodes=tuple(node.cluster_address for node in nodes), listen="127.0.0.1:0", **files[2].settings
            )
        )
    )
    while not frontend.routes.members():
        await asyncio.sleep(0.01)
    tls = [*((node.tls, node._cluster_tls) for node in nodes), (frontend.tls, frontend._tls)]
    shards = _shard_epochs(nodes)
    load = Load([nodes[0].address, nodes[1].address, frontend.address], old)
    load.start()
    await load.progress()

    async def read_again(position: int) -> None:
        for follower in tls[position]:
            assert follower is not None
            await follower.reload()

    load.ca = old.public.cert_pem + new.public.cert_pem
    for position, each in enumerate(files):
        each.trust(old, new)
        await read_again(position)
    await load.progress()
    for position, each in enumerate(files):
        each.issue(new)
        await read_again(position)
        await load.progress()
    load.client = new.client
    await load.progress()
    load.ca = new.public.cert_pem
    for position, each in enumerate(files):
        each.trust(new)
        await read_again(position)
        await load.progress()
    await load.stop()

    assert {len(epochs) for epochs in load.epochs.values()} == {1}, "a worker was declared dead"
    assert _shard_epochs(nodes) == shards
    await _check_that_the_old_are_refused(nodes[0], old, new)


def _node(url: str, files: Files) -> Server:
    return Server(
        Settings(db=url, listen="127.0.0.1:0", shards=SHARDS, takeover_grace_ms=0, **files.settings)
    )


def _shard_epochs(nodes: list[Server]) -> dict[int, int]:
    return {shard.id: shard.epoch for node in nodes for shard in node.node.shards()}


async def _check_that_the_old_are_refused(node: Server, old: Authorities, new: Authorities) -> None:
    async with connect(node.address, new.public.cert_pem, *old.client) as channel:
        public: Any = LivenessServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await public.GetServerInfo(service_pb2.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    pair = [(old.folder / f"node.{end}").read_bytes() for end in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials(new.cluster_ca(), *pair)
    async with grpc.aio.secure_channel(node.cluster_address, credentials, options=OWN_CONNECTION) as channel:
        stub: Any = ClusterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetRoutes(cluster_pb2.GetRoutesRequest(), timeout=CALL_TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
