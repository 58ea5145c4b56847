"""Clients that nobody here wrote, at a server whose port belongs to the native edge."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from shutil import which
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from liveness.app import Server
from liveness.config.settings import Settings
from liveness.server.edge_listener import edge_is_installed
from liveness.v1 import service_pb2, worker_pb2
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.server.server_harness import REGISTERED, RENEWED

pytestmark = pytest.mark.skipif(
    not edge_is_installed(), reason="the native edge is not installed; make edge builds it"
)


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    settings = Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0", listener="edge")
    async with Server(settings) as server:
        yield server.address


def request(worker: str) -> service_pb2.RecordWorkerHeartbeatRequest:
    beat = worker_pb2.WorkerHeartbeat(worker_instance_key=worker)
    return service_pb2.RecordWorkerHeartbeatRequest(namespace="default", heartbeat=beat)


async def test_the_blocking_client_of_grpcio(address: str) -> None:
    def use() -> tuple[Any, ...]:
        with ExitStack() as stack:
            channel = stack.enter_context(grpc.insecure_channel(address))
            stub: Any = LivenessServiceStub(channel)
            health: Any = HealthStub(channel)
            info = stub.GetServerInfo(service_pb2.GetServerInfoRequest(), timeout=20)
            outcomes = [
                stub.RecordWorkerHeartbeat(request("w"), timeout=20, compression=compression).outcome
                for compression in (None, grpc.Compression.Gzip)
            ]
            events = stub.WatchEvents(
                service_pb2.WatchEventsRequest(namespace="default", from_beginning=True), timeout=20
            )
            first = next(event.type for batch in events for event in batch.events)
            events.cancel()
            watched = next(health.Watch(health_pb2.HealthCheckRequest(), timeout=20)).status
            with pytest.raises(grpc.RpcError) as refused:
                stub.RecordWorkerHeartbeat(request(""), timeout=20)
            return info.listener, outcomes, first, watched, refused.value.code()

    assert await asyncio.to_thread(use) == (
        "edge",
        [REGISTERED, RENEWED],
        "WorkerRegistered",
        health_pb2.HealthCheckResponse.SERVING,
        grpc.StatusCode.INVALID_ARGUMENT,
    )


async def test_a_client_in_go_calls_by_what_reflection_tells(address: str) -> None:
    """`buf curl` is a Go program with grpc-go's HTTP/2, and learns the calls by reflection."""
    buf = which("buf", path=str(Path(sys.executable).parent)) or which("buf")
    if buf is None:
        pytest.skip("there is no wheel of buf for this platform")
    body = {"namespace": "default", "heartbeat": {"workerInstanceKey": "from-go"}}
    command = [
        buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", json.dumps(body),
        f"http://{address}/liveness.v1.LivenessService/RecordWorkerHeartbeat",
    ]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "HEARTBEAT_OUTCOME_REGISTERED"
