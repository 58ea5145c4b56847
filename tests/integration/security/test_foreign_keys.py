"""One worker against another's key in every method that names a worker: at the node of the key, at another node, and
through a frontend. A method that is added and named nowhere here fails a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.frontend.app import Frontend
from liveness.v1 import (
    access_pb2,
    activity_pb2,
    component_metrics_service_pb2,
    component_pb2,
    component_service_pb2,
    progress_service_pb2,
    registry_service_pb2,
    service_pb2,
)
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_access_matrix import METHODS, call
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.security.test_nodes_and_frontends import caller, frontend, key_on, nodes
from tests.integration.server.server_harness import REGISTERED, heartbeat

__all__ = ["frontend", "nodes"]

SESSION = "s1"
KEYS = ("w", "pool:w", "worker:g:", "supervisor:g")
"""What the keys of each kind begin with; a number follows."""


def requests(key: str) -> Iterator[tuple[str, Any]]:
    """A valid request of each method that may name such a key, as its owner could make it."""
    session: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": key, "session_id": SESSION}
    id = activity_pb2.ActivityId(workflow_id="wf", run_id="r", activity_id="a")
    attempt: dict[str, Any] = {**session, "id": id, "lease_epoch": 1, "attempt": 1}
    yield (
        "RecordWorkerHeartbeat",
        service_pb2.RecordWorkerHeartbeatRequest(
            namespace=NAMESPACE, heartbeat=heartbeat(key, session_id=SESSION, sequence=2)
        ),
    )
    yield (
        "RecordWorkerHeartbeats",
        service_pb2.RecordWorkerHeartbeatsRequest(
            namespace=NAMESPACE, heartbeats=[heartbeat(key, session_id=SESSION, sequence=2)]
        ),
    )
    yield (
        "Attach",
        service_pb2.AttachRequest(attach=service_pb2.AttachRequest.Attach(**session)),
    )
    yield "ShutdownWorker", service_pb2.ShutdownWorkerRequest(**session)
    yield "PollActivity", activity_pb2.PollActivityRequest(**session, task_queue="q")
    yield "ClaimActivity", activity_pb2.ClaimActivityRequest(**session, id=id, task_queue="q")
    yield "CompleteActivity", activity_pb2.CompleteActivityRequest(**attempt)
    yield "FailActivity", activity_pb2.FailActivityRequest(**attempt)
    yield "RecordActivityHeartbeat", activity_pb2.RecordActivityHeartbeatRequest(**attempt)
    yield "ReleaseActivity", activity_pb2.ReleaseActivityRequest(**attempt)
    yield (
        "ReportMetrics",
        component_metrics_service_pb2.ReportMetricsRequest(
            namespace=NAMESPACE,
            worker_instance_key=key,
            samples=[component_metrics_service_pb2.MetricSample(name="m", value=1)],
        ),
    )
    yield (
        "ReportProgress",
        progress_service_pb2.ReportProgressRequest(
            namespace=NAMESPACE, worker_instance_key=key, unit="u", successes=1
        ),
    )
    if key.startswith("pool:"):
        yield "Register", registry_service_pb2.RegisterRequest(**session)
        yield "Heartbeat", registry_service_pb2.HeartbeatRequest(**session)
        yield "Deregister", registry_service_pb2.DeregisterRequest(**session)
    if key.startswith("worker:"):
        yield (
            "ReportComponent",
            component_service_pb2.ReportComponentRequest(
                **session,
                number=1,
                status=component_pb2.COMPONENT_STATUS_STARTING,
                time=Timestamp(seconds=int(time.time())),
            ),
        )
    if key.startswith("supervisor:"):
        yield "PollComponentOrders", component_service_pb2.PollComponentOrdersRequest(**session)
        yield "SendComponentLogs", component_service_pb2.SendComponentLogsRequest(**session, request_id="r")


BY_NAME = {method.name: method for method in METHODS}


async def register(owner: Client, key: str) -> None:
    assert (await beat(owner, key, session_id=SESSION, sequence=1)).outcome == REGISTERED
    if key.startswith("pool:"):
        await call(
            owner,
            BY_NAME["Register"],
            registry_service_pb2.RegisterRequest(
                namespace=NAMESPACE, worker_instance_key=key, session_id=SESSION
            ),
            owner.token,
        )


def test_every_method_of_workers_is_among_the_requests() -> None:
    tried = {name for key in KEYS for name, _ in requests(f"{key}1")}
    about_workers = {
        method.name
        for method in METHODS
        if access_pb2.ROLE_WORKER in method.GetOptions().Extensions[access_pb2.access].role
        and method.GetOptions().Extensions[access_pb2.access].scope == access_pb2.SCOPE_WORKER
    }
    assert tried == about_workers


@pytest.mark.parametrize("prefix", KEYS)
async def test_no_method_serves_another_principals_key(
    nodes: list[AuthHarness], frontend: Frontend, prefix: str
) -> None:
    first, second = nodes
    owner_token = await caller(nodes, "render", f"worker:{NAMESPACE}")
    thief_token = await caller(nodes, "thief", f"worker:{NAMESPACE}")
    owner = Client(first.channel, owner_token)
    async with grpc.aio.insecure_channel(frontend.address) as channel:
        await channel.channel_ready()
        entrances = {"node": first.channel, "frontend": channel}
        for key in (key_on(first, prefix), key_on(second, prefix)):
            await register(owner, key)
            before = await stored(first, key)
            for name, request in requests(key):
                for entrance, through in entrances.items():
                    thief = Client(through, thief_token)
                    reason = await call(thief, BY_NAME[name], request, thief_token)
                    assert reason == "WORKER_KEY_OWNED", (name, key, entrance, reason)
            assert await stored(first, key) == before
            # The same requests are valid: their owner is not told that the key is somebody else's.
            for name, request in requests(key):
                assert await call(owner, BY_NAME[name], request, owner_token) != "WORKER_KEY_OWNED", name


async def stored(harness: AuthHarness, key: str) -> tuple[Any, ...]:
    request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
    worker = (await harness.admin_client.liveness.DescribeWorker(request)).worker
    return worker.state, worker.lease_epoch, worker.heartbeat_count, worker.session_id, worker.principal
