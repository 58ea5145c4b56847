"""A complete frontend for real nodes that share a PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from liveness.config.frontend_settings import FrontendSettings
from liveness.domain.keys import shard_of
from liveness.frontend.app import Frontend
from liveness.testing import Server, Settings
from liveness.v1 import service_pb2
from tests.databases import PostgresServer
from tests.integration.routing.routed_cluster import Client
from tests.integration.routing.test_forwarding import beat_request, describe_request
from tests.integration.routing.test_stream_proxy import Stream
from tests.integration.server.server_harness import NAMESPACE, REGISTERED, heartbeat, refusal
from tests.integration.telemetry.exposition import Exposition

SERVING = health_pb2.HealthCheckResponse.SERVING
MANY = 64
"""Enough shards that each node gets some, whatever its address."""
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Nodes:
    def __init__(self, url: str) -> None:
        self.url = url
        self.servers: list[Server] = []

    async def start(self) -> Server:
        settings = Settings(
            db=self.url, listen="127.0.0.1:0", shards=MANY, takeover_grace_ms=0, shutdown_timeout_s=5.0
        )
        server = Server(settings)
        await server.start()
        self.servers.append(server)
        return server

    async def share(self) -> None:
        """Wait until each node has its share of shards."""
        while not all(server.membership.is_fully_serving and server.node.shards() for server in self.servers):
            await asyncio.sleep(0.01)

    async def stop(self, server: Server) -> None:
        self.servers.remove(server)
        await server.stop()


@pytest.fixture
async def nodes(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Nodes]:
    nodes = Nodes(postgres.url(postgres_database))
    for _ in range(2):
        await nodes.start()
    await nodes.share()
    yield nodes
    for server in list(nodes.servers):
        await nodes.stop(server)


@pytest.fixture(params=["db", "nodes"])
async def frontend(nodes: Nodes, request: pytest.FixtureRequest) -> AsyncIterator[Frontend]:
    """A frontend that reads the registry from the database or from one of the nodes."""
    where: dict[str, Any] = (
        {"db": nodes.url} if request.param == "db" else {"nodes": (nodes.servers[0].cluster_address,)}
    )
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", **where)) as frontend:
        await health(frontend, SERVING)
        yield frontend


@pytest.fixture
async def client(frontend: Frontend) -> AsyncIterator[Client]:
    client = Client(frontend.address)
    yield client
    await client.channel.close()


async def health(frontend: Frontend, wanted: int) -> None:
    async with grpc.aio.insecure_channel(frontend.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        async for status in stub.Watch(health_pb2.HealthCheckRequest(), timeout=30):
            if status.status == wanted:
                return
    raise AssertionError("the health never became what was wanted")


async def test_every_worker_is_reached_on_any_node(nodes: Nodes, client: Client) -> None:
    workers = [f"w{number}" for number in range(40)]
    beats = await asyncio.gather(
        *(client.liveness.RecordWorkerHeartbeat(beat_request(worker)) for worker in workers)
    )
    assert {beat.outcome for beat in beats} == {REGISTERED}
    for worker in workers:
        await client.liveness.DescribeWorker(describe_request(worker))
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=map(heartbeat, workers)
    )
    items = (await client.liveness.RecordWorkerHeartbeats(request)).items
    assert [item.WhichOneof("outcome") for item in items] == ["result"] * 40
    counted = await client.liveness.CountWorkers(service_pb2.CountWorkersRequest(namespace=NAMESPACE))
    assert counted.total == 40


async def test_a_stopping_node_loses_no_heartbeat_and_no_stream(nodes: Nodes, client: Client) -> None:
    workers = [f"w{number}" for number in range(12)]
    for worker in workers:
        await client.liveness.RecordWorkerHeartbeat(
            beat_request(worker, session_id="s", sequence=1, lease_ms=60_000)
        )
    stream = Stream(client)
    await stream.attach_fully(*workers)
    stopping = asyncio.ensure_future(nodes.stop(nodes.servers[1]))
    sequence = 1
    while not stopping.done():
        sequence += 1
        await asyncio.gather(
            *(
                client.liveness.RecordWorkerHeartbeat(
                    beat_request(worker, session_id="s", sequence=sequence, lease_ms=60_000), timeout=10
                )
                for worker in workers
            )
        )
    await stopping

    async def all_attached() -> bool:
        return all(
            [
                (await client.liveness.DescribeWorker(describe_request(worker))).worker.attached
                for worker in workers
            ]
        )

    while not await all_attached():
        await asyncio.sleep(0.01)
    assert await stream.ping() == []


async def test_clients_of_a_node_do_not_notice_the_stop_of_another(nodes: Nodes) -> None:
    client = Client(nodes.servers[0].address)
    try:
        await test_every_worker_is_reached_on_any_node(nodes, client)
        await test_a_stopping_node_loses_no_heartbeat_and_no_stream(nodes, client)
    finally:
        await client.channel.close()


async def test_calls_reach_nodes_that_join(nodes: Nodes, frontend: Frontend, client: Client) -> None:
    joined = await nodes.start()
    await nodes.share()
    while len({owner.node_id for owner in frontend.routes.owners().values()}) < 3:
        await asyncio.sleep(0.01)
    worker = next(
        name for name in map(str, range(1_000)) if joined.node.serves(shard_of(NAMESPACE, name, MANY))
    )
    await client.liveness.RecordWorkerHeartbeat(beat_request(worker))
    assert any(key.instance_key == worker for shard in joined.node.shards() for key in shard.workers)


async def test_a_frontend_without_reachable_nodes_reports_not_serving(nodes: Nodes) -> None:
    (address,) = {server.cluster_address for server in nodes.servers[:1]}
    unused = "127.0.0.1:1"
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", nodes=(unused,))) as frontend:
        await health(frontend, NOT_SERVING)
        async with grpc.aio.insecure_channel(frontend.address) as channel:
            call: Any = channel.unary_unary(
                "/liveness.v1.LivenessService/RecordWorkerHeartbeat",
                service_pb2.RecordWorkerHeartbeatRequest.SerializeToString,
            )
            refused = await refusal(call(beat_request("w")))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_NODE_REACHABLE")
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", nodes=(unused, address))) as frontend:
        await health(frontend, SERVING)


async def test_unknown_calls_are_forwarded_unchanged(frontend: Frontend) -> None:
    """No node knows the call here either, and the node refuses it."""
    async with grpc.aio.insecure_channel(frontend.address) as channel:
        call: Any = channel.unary_unary("/liveness.v1.LivenessService/CallOfTheFuture")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"whatever")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        between_nodes: Any = channel.unary_unary("/liveness.v1.ClusterService/GetRoutes")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await between_nodes(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_calls_and_forwarded_calls_are_counted(frontend: Frontend, client: Client) -> None:
    await client.liveness.RecordWorkerHeartbeat(beat_request("counted"))
    await refusal(client.liveness.DescribeWorker(describe_request("nobody")))
    text, _ = frontend.metrics()
    now = Exposition(text)
    described = {"method": "LivenessService/DescribeWorker"}
    for name in ("rpc", "forwarded_rpc"):
        assert now.value(f"liveness_{name}s_total", code="NOT_FOUND", **described) == 1
        assert now.value(f"liveness_{name}_duration_seconds_count", **described) == 1
    assert now.value("liveness_rpcs_total", code="OK", method="LivenessService/RecordWorkerHeartbeat") == 1
    # A single heartbeat travels in a batch.
    batch = {"method": "LivenessService/RecordWorkerHeartbeats"}
    assert now.value("liveness_forwarded_rpcs_total", code="OK", **batch) == 1
    assert now.value("liveness_frontend_nodes") == 2
    assert now.value("liveness_database_reachable") == 1


async def test_a_frontend_needs_one_database_connection_and_reports_a_database_that_is_away(
    postgres: PostgresServer, nodes: Nodes
) -> None:
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", db=nodes.url)) as frontend:
        await health(frontend, SERVING)
        now = Exposition(frontend.metrics()[0])
        open_connections = now.value("liveness_db_connections", state="in_use") + now.value(
            "liveness_db_connections", state="idle"
        )
        assert open_connections == 1
        assert now.value("liveness_db_connections_max") == 2
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", db=postgres.url("missing"))) as frontend:
        async with asyncio.timeout(30):
            while Exposition(frontend.metrics()[0]).value("liveness_database_reachable"):
                await asyncio.sleep(0.01)
        assert Exposition(frontend.metrics()[0]).value("liveness_frontend_nodes") == 0
