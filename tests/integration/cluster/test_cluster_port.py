"""The public port knows nothing of what nodes say to each other; the cluster's port asks who calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from liveness.app import CLUSTER_SERVICE, Server
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.config.settings import Settings
from liveness.frontend.app import Frontend
from liveness.security.certificates import create_certificates
from liveness.security.cluster_tls import ClusterTls
from liveness.security.tls_settings import TlsFilesUnusable, make_cluster_tls
from liveness.v1 import cluster_pb2, fleet_pb2, service_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.databases import PostgresServer
from tests.integration.routing.test_forwarding import beat_request, describe_request
from tests.integration.server.server_harness import ServerHarness, refusal

FRONTEND_MAY = {"GetRoutes", "Relay", "Authenticate"}
SHARDS = 8


def make_certificates(folder: Path) -> Path:
    create_certificates(folder, ["127.0.0.1"], datetime.now(UTC), days=1)
    return folder


def tls_settings(folder: Path, kind: str = "node") -> dict[str, str]:
    return {
        "cluster_cert_file": f"{folder}/{kind}.pem",
        "cluster_key_file": f"{folder}/{kind}.key",
        "cluster_ca_file": f"{folder}/ca.pem",
    }


def tls_of(folder: Path, kind: str) -> ClusterTls:
    tls = make_cluster_tls(Settings(**tls_settings(folder, kind)), SystemClock())  # type: ignore[arg-type]
    assert tls is not None
    return tls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certificates")


@pytest.fixture
async def nodes(
    postgres: PostgresServer, postgres_database: str, folder: Path
) -> AsyncIterator[list[Server]]:
    """Two nodes with TLS on the cluster's port, each with a share of the shards."""
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            settings = Settings(
                db=postgres.url(postgres_database),
                listen="127.0.0.1:0",
                shards=SHARDS,
                takeover_grace_ms=0,
                **tls_settings(folder),  # type: ignore[arg-type]
            )
            servers.append(await stack.enter_async_context(Server(settings)))
        while not all(server.membership.is_fully_serving and server.node.shards() for server in servers):
            await servers[0].routes.wait_for_change(servers[0]._clock, 50)
        yield servers


# -- the public port


async def test_the_public_port_does_not_know_the_calls_of_nodes(
    postgres: PostgresServer, postgres_database: str
) -> None:
    harness = ServerHarness(postgres.url(postgres_database))
    await harness.start()
    try:
        for method in CLUSTER_SERVICE.methods:
            kind = "stream_stream" if method.client_streaming else "unary_unary"
            call: Any = getattr(harness.channel, kind)(f"/liveness.v1.ClusterService/{method.name}")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await (call().read() if method.client_streaming else call(b""))
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, method.name
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(harness.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
        names = {service.name for service in answer.list_services_response.service}
        assert "liveness.v1.LivenessService" in names
        assert "liveness.v1.ClusterService" not in names
    finally:
        await harness.stop()


async def test_metadata_of_a_client_chooses_no_node(postgres: PostgresServer, postgres_database: str) -> None:
    harness = ServerHarness(postgres.url(postgres_database))
    await harness.start()
    try:
        await harness.beat("w")
        for metadata in ((("liveness-to", "nobody"),), (("liveness-to", harness.server.node.owner),)):
            answer = await harness.liveness.DescribeWorker(describe_request("w"), metadata=metadata)
            assert answer.worker.worker_instance_key == "w"
    finally:
        await harness.stop()


async def test_a_server_on_sqlite_has_no_port_for_a_cluster(tmp_path: Path) -> None:
    async with Server(Settings(db=f"sqlite:///{tmp_path}/x.db", listen="127.0.0.1:0")) as server:
        assert server.cluster_address == ""


# -- the kinds of peer


async def test_nodes_with_tls_forward_calls_to_each_other_and_serve_a_frontend(
    nodes: list[Server], folder: Path
) -> None:
    settings = FrontendSettings(
        nodes=(nodes[0].cluster_address,),
        listen="127.0.0.1:0",
        **tls_settings(folder, "frontend"),  # type: ignore[arg-type]
    )
    async with Frontend(settings) as frontend:
        for address in (nodes[0].address, nodes[1].address, frontend.address):
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = LivenessServiceStub(channel)
                for number in range(20):
                    await stub.RecordWorkerHeartbeat(beat_request(f"w{number}"), timeout=10)
                stream = stub.Attach()
                await stream.write(service_pb2.AttachRequest(ping=service_pb2.AttachRequest.Ping()))
                await asyncio.wait_for(stream.read(), 10)
                stream.cancel()


async def test_a_frontend_may_not_speak_as_a_node(nodes: list[Server], folder: Path) -> None:
    channel: Any = tls_of(folder, "frontend").connect(nodes[0].cluster_address)
    try:
        for method in CLUSTER_SERVICE.methods:
            if method.client_streaming or method.name in FRONTEND_MAY:
                continue
            call = channel.unary_unary(f"/liveness.v1.ClusterService/{method.name}")
            refused = await refusal(call(b"", timeout=10))
            assert (refused.code, refused.reason) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "PEER_NOT_ALLOWED",
            ), method.name
            assert refused.fields["kind"] == "frontend"
        stub: Any = ClusterServiceStub(channel)
        assert (await stub.GetRoutes(cluster_pb2.GetRoutesRequest())).shard_count == SHARDS
        info: Any = LivenessServiceStub(channel)
        await info.GetServerInfo(
            service_pb2.GetServerInfoRequest(), metadata=(("liveness-to", nodes[0].node.owner),)
        )
        counted = nodes[0].telemetry.suspicion.totals["cluster_port"]
        assert counted == len(CLUSTER_SERVICE.methods) - len(FRONTEND_MAY), "what it may do is not counted"
        # A client that found the port, with the certificate of a frontend: its calls name no node.
        refused = await refusal(info.GetServerInfo(service_pb2.GetServerInfoRequest()))
        assert refused.reason == "NOT_FORWARDED"
        assert nodes[0].telemetry.suspicion.totals["cluster_port"] == counted + 1
        assert nodes[1].telemetry.suspicion.totals["cluster_port"] == 0
        metrics, _ = nodes[0].metrics()
        assert f'liveness_suspicious_total{{kind="cluster_port"}} {counted + 1}' in metrics.decode()
        [alert] = [
            alert
            for alert in (await _fleet(nodes[0])).alerts
            if alert.kind == fleet_pb2.ALERT_KIND_SUSPICIOUS
        ]
        assert alert.message.startswith(f"127.0.0.1 was refused {counted + 1} times")
    finally:
        await channel.close()


async def _fleet(server: Server) -> fleet_pb2.GetFleetResponse:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = AdminServiceStub(channel)
        response: fleet_pb2.GetFleetResponse = await stub.GetFleet(fleet_pb2.GetFleetRequest(), timeout=30)
        return response


async def test_peers_without_a_certificate_of_the_cluster_are_not_heard(
    nodes: list[Server], folder: Path, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path / "others")
    (others / "ca.pem").write_bytes(
        (folder / "ca.pem").read_bytes()
    )  # it trusts the nodes, they do not trust it
    address = nodes[0].cluster_address
    ca_only = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    channels: list[Any] = [
        grpc.aio.insecure_channel(address),
        grpc.aio.secure_channel(address, ca_only),
        tls_of(others, "node").connect(address),
    ]
    for channel in channels:
        stub: Any = ClusterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.GetRoutes(cluster_pb2.GetRoutesRequest(), timeout=10)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close()


# -- new certificates


async def test_certificates_are_renewed_without_a_failed_call(nodes: list[Server], folder: Path) -> None:
    stop = asyncio.Event()
    served = 0

    async def load(address: str) -> None:
        nonlocal served
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = LivenessServiceStub(channel)
            number = 0
            while not stop.is_set():
                number = (number + 1) % 40
                await stub.RecordWorkerHeartbeat(beat_request(f"w{number}"), timeout=10)
                served += 1

    loads = [asyncio.ensure_future(load(server.address)) for server in nodes]
    for _ in range(5):
        make_certificates(folder)
        for server in nodes:
            assert server._cluster_tls is not None
            assert await server._cluster_tls.reload()
        until = served + 50
        while served < until:
            assert not any(task.done() for task in loads), "a call failed"
            await asyncio.sleep(0)
    stop.set()
    await asyncio.gather(*loads)


async def test_files_that_cannot_be_used_are_refused_and_never_replace_good_ones(folder: Path) -> None:
    tls = tls_of(folder, "node")
    good = (folder / "node.pem").read_bytes()
    (folder / "node.pem").write_bytes((folder / "frontend.pem").read_bytes())  # not that of the key
    assert not await tls.reload()
    with pytest.raises(TlsFilesUnusable, match="does not belong to"):
        tls_of(folder, "node")
    (folder / "node.pem").write_bytes(good)
    assert not await tls.reload(), "it has not changed"
    (folder / "ca.pem").write_text("nonsense")
    assert not await tls.reload()
    with pytest.raises(TlsFilesUnusable, match=r"cluster CA file .*ca\.pem has no certificate"):
        tls_of(folder, "node")
    (folder / "node.key").unlink()
    with pytest.raises(TlsFilesUnusable, match=r"node\.key cannot be read"):
        tls_of(folder, "node")


def test_an_expired_certificate_of_a_node_is_refused_at_start(folder: Path) -> None:
    create_certificates(folder, ["127.0.0.1"], datetime.now(UTC) - timedelta(days=3), days=1)
    with pytest.raises(TlsFilesUnusable, match="expired on"):
        tls_of(folder, "node")
