"""A batch for workers on several nodes gets one answer in its own order."""

from __future__ import annotations

import asyncio

import grpc
from hypothesis import given
from hypothesis import strategies as st

from liveness.routing.batches import group_by_target, merge
from liveness.v1 import service_pb2
from tests.integration.routing.routed_cluster import Client, Cluster
from tests.integration.routing.test_retries import shard_id_of
from tests.integration.server.server_harness import NAMESPACE, REGISTERED, heartbeat, refusal, unpack_status

Item = service_pb2.RecordWorkerHeartbeatsResponse.Item


async def send(client: Client, workers: list[str], **fields: int) -> list[Item]:
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(worker, **fields) for worker in workers]
    )
    response = await client.liveness.RecordWorkerHeartbeats(request)
    return list(response.items)


@given(st.lists(st.integers(0, 4), max_size=40))
def test_splitting_and_merging_a_batch_keeps_its_order(owners: list[int]) -> None:
    parts = group_by_target(owners)
    assert sorted(position for part in parts.values() for position in part) == list(range(len(owners)))
    merged: list[tuple[int, int] | None] = [None] * len(owners)
    for owner, positions in parts.items():
        assert positions == sorted(positions)
        merge(merged, positions, [(owner, position) for position in positions])
    assert merged == list(zip(owners, range(len(owners)), strict=True))


async def test_each_item_is_answered_by_its_owner_in_request_order(cluster: Cluster) -> None:
    workers = [f"w{number}" for number in range(40)]
    for client in (cluster.client, cluster.connect(cluster.owners["a"].address)):
        lease_ms = {worker: 2_000 + 10 * at for at, worker in enumerate(workers)}
        request = service_pb2.RecordWorkerHeartbeatsRequest(
            namespace=NAMESPACE,
            heartbeats=[heartbeat(worker, lease_ms=lease_ms[worker]) for worker in workers],
        )
        items = (await client.liveness.RecordWorkerHeartbeats(request)).items
        granted = [item.result.granted_lease_duration.ToMilliseconds() for item in items]
        assert granted == list(lease_ms.values())
    assert cluster.owners["a"].recorder.methods() == ["RecordWorkerHeartbeats"] * 2
    assert cluster.owners["b"].recorder.methods() == ["RecordWorkerHeartbeats"] * 2


async def test_an_item_is_refused_alone(cluster: Cluster) -> None:
    a, b = cluster.worker_owned_by("a"), cluster.worker_owned_by("b")
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(a), heartbeat(b, lease_ms=-1), heartbeat(b)]
    )
    items = (await cluster.client.liveness.RecordWorkerHeartbeats(request)).items
    assert [item.WhichOneof("outcome") for item in items] == ["result", "status", "result"]
    assert unpack_status(items[1].status).reason == "INVALID_FIELD"


async def test_items_follow_a_shard_that_moved(cluster: Cluster) -> None:
    workers = [f"w{number}" for number in range(30)]
    cluster.move(shard_id_of(workers[0]), "b" if cluster.owner_of(workers[0]).name == "a" else "a")
    items = await send(cluster.client, workers)
    assert [item.result.outcome for item in items] == [REGISTERED] * 30


async def test_items_of_a_lost_node_are_sent_to_the_next_owner(cluster: Cluster) -> None:
    workers = [f"w{number}" for number in range(30)]
    recorder = cluster.owners["a"].recorder
    recorder.gate = asyncio.Event()
    sending = asyncio.ensure_future(send(cluster.client, workers))
    await recorder.arrived.wait()
    await cluster.owners["a"].kill()
    cluster.owners["b"].owned |= cluster.owners["a"].owned
    cluster.owners["a"].owned.clear()
    cluster.publish()
    assert [item.result.outcome for item in await sending] == [REGISTERED] * 30


async def test_a_node_forwards_items_whose_shards_move_during_the_batch(cluster: Cluster) -> None:
    a = cluster.owners["a"]
    workers = [cluster.worker_owned_by("a", at) for at in range(10)]
    client = cluster.connect(a.address)
    cluster.move(shard_id_of(workers[0]), "b")
    # The ownership changes between routing and serving the batch.
    a.gateway.owns_all_shards = lambda: True
    items = await send(client, workers)
    assert [item.result.outcome for item in items] == [REGISTERED] * 10


async def test_items_of_an_unserved_shard_are_refused_alone(cluster: Cluster) -> None:
    a, b = cluster.worker_owned_by("a"), cluster.worker_owned_by("b")
    cluster.owners["a"].owned.discard(shard_id_of(a))
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(a), heartbeat(b)]
    )
    items = (await cluster.client.liveness.RecordWorkerHeartbeats(request, timeout=3)).items
    # The last refusal of the node, not that of a try without enough time for an answer.
    assert unpack_status(items[0].status).reason == "SHARD_UNAVAILABLE"
    assert items[1].result.outcome == REGISTERED


async def test_an_invalid_batch_is_refused_as_a_whole(cluster: Cluster) -> None:
    call = cluster.client.liveness.RecordWorkerHeartbeats
    beats = [heartbeat(f"w{number}") for number in range(1_001)]
    request = service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=beats)
    assert (await refusal(call(request))).violations == [("heartbeats", "must be at most 1000 per call")]
    request = service_pb2.RecordWorkerHeartbeatsRequest(heartbeats=beats[:50])
    assert (await refusal(call(request))).code is grpc.StatusCode.INVALID_ARGUMENT
    assert list((await call(service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE))).items) == []
