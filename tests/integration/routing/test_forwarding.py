"""Calls reach the owner of their shard, and the caller gets the owner's answer unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain.keys import shard_of
from liveness.frontend.app import SERVICES
from liveness.routing.routing_rules import ROUTING_RULES, RoutingKind, rule_of
from liveness.routing.routing_table import Member
from liveness.v1 import activity_pb2, admin_pb2, service_pb2
from tests.integration.routing.routed_cluster import Cluster
from tests.integration.server.server_harness import NAMESPACE, REGISTERED, SHARDS, heartbeat, refusal


def beat_request(worker: str, **fields: Any) -> service_pb2.RecordWorkerHeartbeatRequest:
    return service_pb2.RecordWorkerHeartbeatRequest(
        namespace=NAMESPACE, heartbeat=heartbeat(worker, **fields)
    )


def describe_request(worker: str) -> service_pb2.DescribeWorkerRequest:
    return service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker)


def poll_request(worker: str, wait_ms: int) -> activity_pb2.PollActivityRequest:
    wait = Duration(seconds=wait_ms // 1_000, nanos=wait_ms % 1_000 * 1_000_000)
    return activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key=worker, wait=wait, task_queue="q"
    )


def test_every_method_has_a_routing_rule() -> None:
    """A new call needs a rule: sent to any node, it would miss its shard."""
    methods = {f"{service.name}/{method.name}" for service in SERVICES for method in service.methods}
    assert ROUTING_RULES.keys() == methods
    assert rule_of("LivenessService", "CallOfANewerVersion").kind is RoutingKind.ANY_NODE


async def test_each_call_reaches_the_owner_of_its_shard(cluster: Cluster) -> None:
    liveness, admin, activities = cluster.client.liveness, cluster.client.admin, cluster.client.activities
    for name in ("a", "b"):
        worker, recorder = cluster.worker_owned_by(name), cluster.owners[name].recorder
        recorder.received.clear()
        where: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": worker}
        id = activity_pb2.ActivityId(workflow_id=worker, run_id="r", activity_id="x")
        assert (await liveness.RecordWorkerHeartbeat(beat_request(worker))).outcome == REGISTERED
        await liveness.DescribeWorker(service_pb2.DescribeWorkerRequest(**where))
        await liveness.GetWorkerHistory(service_pb2.GetWorkerHistoryRequest(**where))
        await activities.ScheduleActivity(
            activity_pb2.ScheduleActivityRequest(namespace=NAMESPACE, id=id, task_queue="q")
        )
        await activities.DescribeActivity(activity_pb2.DescribeActivityRequest(namespace=NAMESPACE, id=id))
        await activities.CancelActivity(activity_pb2.CancelActivityRequest(namespace=NAMESPACE, id=id))
        await activities.PollActivity(poll_request(worker, 0))
        await admin.PauseWorkers(admin_pb2.PauseWorkersRequest(**where))
        await admin.ResumeWorkers(admin_pb2.ResumeWorkersRequest(**where))
        await admin.DrainWorker(admin_pb2.DrainWorkerRequest(**where))
        await admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(**where))
        await liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**where))
        assert len(recorder.received) == 12
        assert {received.to for received in recorder.received} == {name}


async def test_settings_of_a_namespace_are_routed_to_one_shard(cluster: Cluster) -> None:
    owner = cluster.owner_of("")
    await cluster.client.admin.UpdateConfig(
        admin_pb2.UpdateConfigRequest(namespace=NAMESPACE, set=admin_pb2.NamespaceConfig(max_workers=7))
    )
    got = await cluster.client.admin.GetConfig(admin_pb2.GetConfigRequest(namespace=NAMESPACE))
    assert got.overrides.max_workers == 7
    assert owner.recorder.methods() == ["UpdateConfig", "GetConfig"]


async def test_calls_for_any_node_are_spread_over_nodes_that_are_not_leaving(cluster: Cluster) -> None:
    info = service_pb2.GetServerInfoRequest()
    for _ in range(4):
        await cluster.client.liveness.GetServerInfo(info)
    assert [len(owner.recorder.received) for owner in cluster.owners.values()] == [2, 2]
    a, b = cluster.owners.values()
    owners = {shard: (owner.node_id, owner.epoch) for shard, owner in cluster.routes.owners().items()}
    cluster.routes.replace(
        [Member("a", a.cluster_address, leaving=True), Member("b", b.cluster_address)], owners
    )
    for _ in range(3):
        await cluster.client.liveness.GetServerInfo(info)
    assert [len(owner.recorder.received) for owner in cluster.owners.values()] == [2, 5]


async def test_a_node_forwards_calls_of_other_shards_and_serves_its_own(cluster: Cluster) -> None:
    a, b = cluster.owners.values()
    client = cluster.connect(a.address)
    await client.liveness.RecordWorkerHeartbeat(beat_request(cluster.worker_owned_by("b")))
    await client.liveness.RecordWorkerHeartbeat(beat_request(cluster.worker_owned_by("a")))
    await client.liveness.DescribeWorker(describe_request(cluster.worker_owned_by("b")))
    assert a.recorder.methods() == ["RecordWorkerHeartbeat", "RecordWorkerHeartbeat", "DescribeWorker"]
    assert [(received.method, received.to) for received in b.recorder.received] == [
        ("RecordWorkerHeartbeats", "b"),
        ("DescribeWorker", "b"),
    ]


async def test_a_forwarded_call_is_never_forwarded_again(cluster: Cluster) -> None:
    """Two nodes that each consider the other the owner would forward the call back and forth."""
    a, b = cluster.owners.values()
    client, request = cluster.connect(a.cluster_address), describe_request(cluster.worker_owned_by("b"))
    refused = await refusal(client.liveness.DescribeWorker(request, metadata=(("liveness-to", "a"),)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    assert b.recorder.received == []


async def test_a_call_addressed_to_another_node_is_refused_with_an_explanation(cluster: Cluster) -> None:
    a = cluster.owners["a"]
    request = describe_request(cluster.worker_owned_by("a"))
    client = cluster.connect(a.cluster_address)
    refused = await refusal(client.liveness.DescribeWorker(request, metadata=(("liveness-to", "c"),)))
    assert (refused.reason, refused.fields) == ("WRONG_NODE", {"node_id": "a", "wanted": "c"})
    assert "set its --advertise" in refused.message


async def test_a_client_at_the_port_of_the_cluster_is_told_where_to_go(cluster: Cluster) -> None:
    client = cluster.connect(cluster.owners["a"].cluster_address)
    refused = await refusal(client.liveness.DescribeWorker(describe_request(cluster.worker_owned_by("a"))))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_FORWARDED")
    for metadata in ((), (("liveness-to", "a"),)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.liveness.Attach(metadata=metadata).read()
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("entrance", ["a frontend", "the owner", "another node"])
async def test_clients_cannot_choose_the_node_with_metadata(cluster: Cluster, entrance: str) -> None:
    """A client that sends what nodes say to each other is served as if it had not, and nobody else gets to see it."""
    a, b = cluster.owners.values()
    worker = cluster.worker_owned_by("b")
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker))
    before = len(b.recorder.received)
    addresses = {"a frontend": cluster.frontend.address, "the owner": b.address, "another node": a.address}
    client = cluster.connect(addresses[entrance])
    for wanted in ("a", "b", "nobody"):
        metadata = (("liveness-to", wanted), ("liveness-alone", "1"), ("liveness-x", "y"))
        answer = await client.liveness.DescribeWorker(describe_request(worker), metadata=metadata)
        assert answer.worker.worker_instance_key == worker
    if entrance != "the owner":
        for received in b.recorder.received[before:]:
            own = [(name, value) for name, value in received.metadata if name.startswith("liveness-")]
            assert own == [("liveness-to", "b")]


async def test_two_nodes_with_one_address_are_detected(cluster: Cluster) -> None:
    a, b = cluster.owners.values()
    epoch = 9
    cluster.routes.replace(
        [Member("a", a.cluster_address), Member("b", a.cluster_address)],
        dict.fromkeys(range(SHARDS), ("b", epoch)),
    )
    refused = await refusal(cluster.client.liveness.DescribeWorker(describe_request("w")))
    assert (refused.reason, refused.fields) == ("WRONG_NODE", {"node_id": "a", "wanted": "b"})
    assert b.recorder.received == []


async def test_metadata_is_forwarded_in_both_directions(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    recorder = cluster.owners["a"].recorder
    recorder.metadata_to_add = (("said-by", "the owner"),)
    metadata = (("x-team", "blue"), ("x-raw-bin", b"\x00\xff"))
    call = cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker), metadata=metadata)
    await call
    (received,) = recorder.received
    assert received.method == "RecordWorkerHeartbeat"  # not coalesced, because it has its own metadata
    got = [(name, value) for name, value in received.metadata if name.startswith(("x-", "liveness"))]
    assert got == [*metadata, ("liveness-to", "a")]
    assert [name for name, _ in received.metadata].count("user-agent") == 1
    assert ("said-by", "the owner") in tuple(await call.initial_metadata())
    assert ("said-by", "the owner") in tuple(await call.trailing_metadata())


async def test_a_refusal_of_the_owner_is_forwarded_unchanged(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("b")
    direct = cluster.connect(cluster.owners["b"].address)
    cluster.owners["b"].recorder.metadata_to_add = (("said-by", "the owner"),)
    for call in ("DescribeWorker", "RecordWorkerHeartbeat"):
        request = describe_request("") if call == "DescribeWorker" else beat_request(worker, lease_ms=-1)
        errors = []
        for client in (direct, cluster.client):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await getattr(client.liveness, call)(request)
            details = dict(raised.value.trailing_metadata())["grpc-status-details-bin"]
            errors.append((raised.value.code(), raised.value.details(), details))
        assert errors[0] == errors[1]
        assert errors[0][0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_request_is_refused_without_forwarding(cluster: Cluster) -> None:
    call = cluster.client.channel.unary_unary("/liveness.v1.LivenessService/DescribeWorker")
    assert (await refusal(call(b"\xff"))).reason == "MALFORMED_REQUEST"
    assert all(owner.recorder.received == [] for owner in cluster.owners.values())


async def test_a_request_without_a_heartbeat_is_refused_by_the_owner(cluster: Cluster) -> None:
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE)
    refused = await refusal(cluster.client.liveness.RecordWorkerHeartbeat(request))
    assert refused.violations == [("heartbeat", "must be set")]


@pytest.mark.parametrize(("timeout", "low", "high"), [(3, 2, 3), (None, 9, 10)])
async def test_the_deadline_is_forwarded(cluster: Cluster, timeout: int | None, low: int, high: int) -> None:
    worker = cluster.worker_owned_by("a")
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker), timeout=timeout)
    await cluster.client.liveness.DescribeWorker(describe_request(worker), timeout=timeout)
    for received in cluster.owners["a"].recorder.received:
        assert received.remaining_s is not None
        assert low < received.remaining_s < high + 0.5  # gRPC rounds it up


async def test_a_poll_has_a_longer_deadline_than_other_calls(cluster: Cluster) -> None:
    worker = cluster.worker_owned_by("a")
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker))
    await cluster.client.activities.PollActivity(poll_request(worker, 0))
    remaining_s = cluster.owners["a"].recorder.received[-1].remaining_s
    assert remaining_s is not None
    assert remaining_s > 60


async def test_a_cancelled_call_is_cancelled_at_the_owner(cluster: Cluster) -> None:
    worker, recorder = cluster.worker_owned_by("a"), cluster.owners["a"].recorder
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker))
    recorder.gate = asyncio.Event()
    recorder.arrived.clear()
    recorder.ended.clear()
    call = cluster.client.activities.PollActivity(poll_request(worker, 30_000))
    await recorder.arrived.wait()
    call.cancel()
    while recorder.ended != ["PollActivity"]:
        await asyncio.sleep(0.001)


async def test_a_watch_is_served_by_any_node_and_ends_with_the_gateway(cluster: Cluster) -> None:
    for owner in cluster.owners.values():
        owner.owned.update(range(SHARDS))  # each of these nodes has all logs, not only those of its shards
    client = cluster.client
    stream = client.liveness.WatchEvents(
        service_pb2.WatchEventsRequest(namespace=NAMESPACE, from_beginning=True)
    )
    assert (await stream.read()).resume_token
    cluster.frontend.gateway.close_streams()
    refused = await refusal(stream.read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_the_refusal_of_a_watch_is_forwarded(cluster: Cluster) -> None:
    request = service_pb2.WatchEventsRequest(resume_token="nonsense")
    assert (
        await refusal(cluster.client.liveness.WatchEvents(request).read())
    ).reason == "RESUME_TOKEN_INVALID"


def test_routing_rules_and_nodes_use_the_same_shard_keys() -> None:
    """The routing table selects the same shard as the node."""
    by_worker = rule_of("LivenessService", "DescribeWorker").shard_key
    by_activity = rule_of("ActivityService", "CompleteActivity").shard_key
    assert by_worker is not None
    assert by_activity is not None
    assert by_worker(describe_request("k")) == (NAMESPACE, "k")
    id = activity_pb2.ActivityId(workflow_id="flow", run_id="r", activity_id="x")
    request = activity_pb2.CompleteActivityRequest(namespace=NAMESPACE, id=id, worker_instance_key="k")
    assert by_activity(request) == (NAMESPACE, "flow")
    assert shard_of(*by_activity(request), SHARDS) == shard_of(NAMESPACE, "flow", SHARDS)
