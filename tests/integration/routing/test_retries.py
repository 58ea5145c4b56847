"""Calls are answered although shards move and nodes are lost, and no call takes effect twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.routing.routing_table import RoutingTable
from liveness.v1 import activity_pb2, service_pb2
from tests.integration.routing.routed_cluster import Client, Cluster, RoutingFrontend
from tests.integration.routing.test_forwarding import beat_request, describe_request
from tests.integration.server.server_harness import NAMESPACE, REGISTERED, SHARDS, refusal


def shard_id_of(worker: str) -> int:
    return shard_of(NAMESPACE, worker, SHARDS)


async def test_a_former_owner_names_the_new_one(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    cluster.move(shard_id_of(worker), "b")
    result = await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker))
    assert result.outcome == REGISTERED
    route = cluster.routes.owner(shard_id_of(worker))
    assert route is not None
    assert route.node_id == "b"
    await cluster.client.liveness.DescribeWorker(describe_request(worker))
    a, b = (owner.recorder.methods() for owner in cluster.owners.values())
    assert (a, b) == (["RecordWorkerHeartbeats"], ["RecordWorkerHeartbeats", "DescribeWorker"])


async def test_a_call_waits_while_its_shard_is_unserved(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    cluster.owners["a"].owned.discard(shard_id_of(worker))
    beat = asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
    await cluster.owners["a"].recorder.arrived.wait()
    cluster.owners["b"].owned.add(shard_id_of(worker))
    cluster.publish()
    assert (await beat).outcome == REGISTERED
    assert cluster.owners["b"].recorder.methods() == ["RecordWorkerHeartbeats"]


async def test_a_call_waits_while_no_owner_is_known(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    cluster.routes.clear_owner(shard_id_of(worker), "a")
    described = asyncio.ensure_future(
        refusal(cluster.client.liveness.DescribeWorker(describe_request(worker)))
    )
    await cluster.client.liveness.GetServerInfo(service_pb2.GetServerInfoRequest())
    assert not described.done()
    cluster.publish()
    assert (await described).reason == "WORKER_NOT_FOUND"


async def test_the_last_refusal_is_returned_before_the_deadline(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    cluster.owners["a"].owned.discard(shard_id_of(worker))
    for request, call in (
        (beat_request(worker), cluster.client.liveness.RecordWorkerHeartbeat),
        (describe_request(worker), cluster.client.liveness.DescribeWorker),
    ):
        refused = await refusal(call(request, timeout=1))
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    assert len(cluster.owners["a"].recorder.received) > 4


async def test_a_call_is_retried_when_its_node_is_killed(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    recorder = cluster.owners["a"].recorder
    recorder.gate = asyncio.Event()
    beat = asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
    described = asyncio.ensure_future(refusal(cluster.client.liveness.DescribeWorker(describe_request("z"))))
    await recorder.arrived.wait()
    await cluster.owners["a"].kill()
    while cluster.routes.owner(shard_id_of(worker)) is not None:
        await asyncio.sleep(0.001)  # the frontend notices it by itself
    assert cluster.frontend.failures > 0
    gone = cluster.owners["a"].owned
    cluster.owners["b"].owned |= gone
    cluster.owners["a"].owned.clear()
    cluster.publish()
    assert (await beat).outcome == REGISTERED
    assert (await described).reason == "WORKER_NOT_FOUND"


async def test_calls_to_a_silent_node_are_retried_when_it_is_declared_lost(cluster: Cluster) -> None:
    """Its machine vanished, so no connection ends. Its removal from the members ends the calls to it."""
    worker = cluster.worker_owned_by("a")
    cluster.owners["a"].recorder.gate = asyncio.Event()
    beat = asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
    await cluster.owners["a"].recorder.arrived.wait()
    lost = cluster.owners.pop("a")
    cluster.owners["b"].owned.update(range(SHARDS))
    cluster.publish()
    assert (await beat).outcome == REGISTERED
    await lost.stop()


def _retry(client: Client, worker: str) -> Awaitable[Any]:
    id = activity_pb2.ActivityId(workflow_id=worker, run_id="r", activity_id="x")
    return client.activities.RetryActivity(activity_pb2.RetryActivityRequest(namespace=NAMESPACE, id=id))


def _poll(client: Client, worker: str) -> Awaitable[Any]:
    request = activity_pb2.PollActivityRequest(namespace=NAMESPACE, worker_instance_key=worker)
    return client.activities.PollActivity(request)


@pytest.mark.parametrize("call", [_retry, _poll])
async def test_a_call_that_is_not_idempotent_is_not_sent_twice(
    cluster: Cluster, call: Callable[[Client, str], Awaitable[Any]]
) -> None:
    worker = cluster.worker_owned_by("a")
    recorder = cluster.owners["a"].recorder
    recorder.gate = asyncio.Event()
    called = asyncio.ensure_future(refusal(call(cluster.client, worker)))
    await recorder.arrived.wait()
    await cluster.owners["a"].kill()
    cluster.owners["b"].owned.update(range(SHARDS))
    cluster.owners["a"].owned.clear()
    cluster.publish()
    refused = await called
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NODE_LOST")
    assert refused.retry_ms is not None
    assert cluster.owners["b"].recorder.received == []


async def test_a_call_that_is_not_idempotent_still_follows_a_moved_shard(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    cluster.move(shard_id_of(worker), "b")
    id = activity_pb2.ActivityId(workflow_id=worker, run_id="r", activity_id="x")
    request = activity_pb2.RetryActivityRequest(namespace=NAMESPACE, id=id)
    assert (await refusal(cluster.client.activities.RetryActivity(request))).reason == "ACTIVITY_NOT_FOUND"
    assert cluster.owners["b"].recorder.methods() == ["RetryActivity"]


async def test_calls_for_any_node_avoid_a_killed_node(cluster: Cluster) -> None:
    await cluster.owners["a"].kill()
    for _ in range(4):
        await cluster.client.liveness.GetServerInfo(service_pb2.GetServerInfoRequest())
    assert cluster.owners["b"].recorder.methods() == ["GetServerInfo"] * 4


async def test_a_node_serves_a_forwarded_call_after_it_takes_the_shard(cluster: Cluster) -> None:
    a, b = cluster.owners.values()
    worker = cluster.worker_owned_by("b")
    b.owned.discard(shard_id_of(worker))
    client = cluster.connect(a.address)
    beat = asyncio.ensure_future(client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
    await b.recorder.arrived.wait()
    a.owned.add(shard_id_of(worker))
    cluster.publish()
    assert (await beat).outcome == REGISTERED
    assert a.recorder.methods() == ["RecordWorkerHeartbeat"]
    await a.harness.describe(worker)


async def test_a_call_is_forwarded_when_its_shard_leaves_the_node_meanwhile(cluster: Cluster) -> None:
    """The node still owned the shard when the call arrived."""
    a = cluster.owners["a"]
    worker = cluster.worker_owned_by("a")
    shard_id = shard_id_of(worker)
    client = cluster.connect(a.address)
    answers = iter([True])
    a.gateway.owns_shard = lambda at: next(answers, False)
    cluster.move(shard_id, "b")
    cluster.publish()
    assert (
        await refusal(client.liveness.DescribeWorker(describe_request(worker)))
    ).reason == "WORKER_NOT_FOUND"
    assert [received.method for received in cluster.owners["b"].recorder.received] == ["DescribeWorker"]


async def test_without_nodes_a_call_is_refused_with_an_explanation() -> None:
    for routes in (RoutingTable(0), RoutingTable(SHARDS)):
        frontend = await RoutingFrontend(routes).start()
        async with grpc.aio.insecure_channel(frontend.address) as channel:
            for method, request in (
                ("RecordWorkerHeartbeat", beat_request("w")),
                ("RecordWorkerHeartbeats", service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=[beat_request("w").heartbeat])),
                ("GetServerInfo", service_pb2.GetServerInfoRequest()),
            ):  # fmt: skip
                call: Any = channel.unary_unary(
                    f"/liveness.v1.LivenessService/{method}", type(request).SerializeToString
                )
                refused = await refusal(call(request))
                assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_NODE_REACHABLE")
                assert refused.message.startswith("No liveness node can be reached from here")
                assert refused.retry_ms is not None
        await frontend.stop()
