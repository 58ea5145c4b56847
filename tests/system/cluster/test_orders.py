"""An operator's command at one node takes effect at all nodes."""

from __future__ import annotations

import asyncio

from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.system.cluster.nodes import Cluster, Node

WORKERS = 24


async def beat(node: Node, namespace: str, number: int) -> worker_pb2.HeartbeatResult:
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace)
    request.heartbeat.worker_instance_key = f"worker-{number}"
    request.heartbeat.task_queue = "even" if number % 2 == 0 else "odd"
    return await node.liveness.RecordWorkerHeartbeat(request, timeout=30)


async def beats(cluster: Cluster, namespace: str) -> list[worker_pb2.HeartbeatResult]:
    """Send heartbeats of all workers, through the nodes in turn."""
    nodes = cluster.nodes
    return list(
        await asyncio.gather(
            *(beat(nodes[number % len(nodes)], namespace, number) for number in range(WORKERS))
        )
    )


async def test_a_setting_applies_at_every_node_at_once(shared_cluster: Cluster, namespace: str) -> None:
    """When the change is answered, every node grants leases by it."""
    for seconds, node in zip((7, 11, 13), shared_cluster.nodes, strict=True):
        config = admin_pb2.NamespaceConfig()
        config.default_lease.FromSeconds(seconds)
        await node.admin.UpdateConfig(admin_pb2.UpdateConfigRequest(namespace=namespace, set=config))
        granted = {result.granted_lease_duration.seconds for result in await beats(shared_cluster, namespace)}
        assert granted == {seconds}
        for other in shared_cluster.nodes:
            told = await other.admin.GetConfig(admin_pb2.GetConfigRequest(namespace=namespace))
            assert told.effective.default_lease.seconds == seconds


async def test_a_pause_by_filter_reaches_workers_of_all_nodes(
    shared_cluster: Cluster, namespace: str
) -> None:
    first, second, third = shared_cluster.nodes
    await beats(shared_cluster, namespace)
    pause = admin_pb2.PauseWorkersRequest(namespace=namespace)
    pause.filter.task_queue = "even"
    assert (await first.admin.PauseWorkers(pause)).changed == WORKERS // 2
    paused = [result.pause for result in await beats(shared_cluster, namespace)]
    assert paused == [number % 2 == 0 for number in range(WORKERS)]
    assert (await second.admin.PauseWorkers(pause)).changed == 0
    resume = admin_pb2.ResumeWorkersRequest(namespace=namespace)
    resume.filter.task_queue = "even"
    assert (await third.admin.ResumeWorkers(resume)).changed == WORKERS // 2
    assert not any(result.pause for result in await beats(shared_cluster, namespace))


async def test_a_pause_of_all_reaches_present_and_future_workers(
    shared_cluster: Cluster, namespace: str
) -> None:
    first, second, third = shared_cluster.nodes
    await beats(shared_cluster, namespace)
    await second.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace=namespace, all=True))
    assert all(result.pause for result in await beats(shared_cluster, namespace))
    assert (await beat(third, namespace, WORKERS)).pause
    await first.admin.ResumeWorkers(admin_pb2.ResumeWorkersRequest(namespace=namespace, all=True))
    assert not any(result.pause for result in await beats(shared_cluster, namespace))
    assert not (await beat(third, namespace, WORKERS)).pause
