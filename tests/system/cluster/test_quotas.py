"""A quota holds over all nodes, however many workers register at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc

from liveness.v1 import admin_pb2, service_pb2
from tests.system.cluster.nodes import Cluster, Node

LIMIT = 40
RACERS = 120


async def register(node: Node, namespace: str, key: str) -> grpc.StatusCode:
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace)
    request.heartbeat.worker_instance_key = key
    request.heartbeat.lease_duration.FromSeconds(600)
    try:
        await node.liveness.RecordWorkerHeartbeat(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_racing_registrations_reach_the_quota_and_never_exceed_it(
    shared_cluster: Cluster, namespace: str
) -> None:
    limit = admin_pb2.NamespaceConfig(max_workers=LIMIT)
    await shared_cluster.nodes[0].admin.UpdateConfig(
        admin_pb2.UpdateConfigRequest(namespace=namespace, set=limit)
    )
    answers = Counter(
        await asyncio.gather(
            *(
                register(shared_cluster.nodes[number % 3], namespace, f"worker-{number}")
                for number in range(RACERS)
            )
        )
    )
    assert answers[grpc.StatusCode.OK] <= LIMIT
    assert set(answers) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, answers
    # A node returns slots that it reserved for a rejected worker, so a repeated call finds the last slots.
    for number in range(RACERS):
        await register(shared_cluster.nodes[number % 3], namespace, f"late-{number}")
    for node in shared_cluster.nodes:
        counted = await node.liveness.CountWorkers(service_pb2.CountWorkersRequest(namespace=namespace))
        assert counted.total == LIMIT
    assert (
        await register(shared_cluster.nodes[1], namespace, "one more") is grpc.StatusCode.RESOURCE_EXHAUSTED
    )
