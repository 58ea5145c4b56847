"""Single heartbeats for one owner travel together, and each caller is told of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from liveness.routing import coalescing
from liveness.v1 import service_pb2
from tests.integration.routing.routed_cluster import Cluster
from tests.integration.routing.test_forwarding import beat_request
from tests.integration.routing.test_retries import shard_id_of
from tests.integration.server.server_harness import REGISTERED, refusal, unpack


async def test_many_heartbeats_are_few_calls(cluster: Cluster) -> None:
    workers = [f"w{number}" for number in range(300)]
    gate = asyncio.Event()
    for owner in cluster.owners.values():
        owner.recorder.gate = gate
    beats = [
        asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
        for worker in workers
    ]
    while len(cluster.frontend.recorder.received) < len(workers):
        await asyncio.sleep(0.001)
    gate.set()
    assert {result.outcome for result in await asyncio.gather(*beats)} == {REGISTERED}
    for owner in cluster.owners.values():
        assert set(owner.recorder.methods()) == {"RecordWorkerHeartbeats"}
        assert len(owner.recorder.received) <= 8
    for worker in workers:
        await cluster.owner_of(worker).harness.describe(worker)


async def test_what_comes_while_one_is_under_way_waits_for_nobody_but_a_moment(cluster: Cluster) -> None:
    """The owner holds the first batch back; the second leaves all the same."""
    recorder = cluster.owners["a"].recorder
    recorder.gate = gate = asyncio.Event()
    workers = [cluster.worker_owned_by("a", at) for at in range(21)]
    first = asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(workers[0])))
    await recorder.arrived.wait()
    rest = [
        asyncio.ensure_future(cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)))
        for worker in workers[1:]
    ]
    while len(recorder.received) < 2:
        await asyncio.sleep(0.001)
    assert not first.done()
    gate.set()
    assert {result.outcome for result in await asyncio.gather(first, *rest)} == {REGISTERED}
    assert len(recorder.received) <= 10


async def test_each_caller_is_told_of_its_own(cluster: Cluster) -> None:
    """The same code, message and details as if it had come alone."""
    recorder = cluster.owners["a"].recorder
    good, bad = cluster.worker_owned_by("a"), cluster.worker_owned_by("a", 1)
    direct = cluster.connect(cluster.owners["a"].address)
    alone = await refusal(direct.liveness.RecordWorkerHeartbeat(beat_request(bad, lease_ms=-1)))
    recorder.received.clear()
    results: Any = await asyncio.gather(
        cluster.client.liveness.RecordWorkerHeartbeat(beat_request(good, lease_ms=5_000)),
        cluster.client.liveness.RecordWorkerHeartbeat(beat_request(bad, lease_ms=-1)),
        return_exceptions=True,
    )
    assert results[0].outcome == REGISTERED
    assert isinstance(results[1], grpc.aio.AioRpcError)
    assert unpack(results[1]) == alone
    assert alone.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(recorder.methods()) == {"RecordWorkerHeartbeats"}


async def test_namespaces_travel_apart(cluster: Cluster) -> None:
    def request(namespace: str) -> service_pb2.RecordWorkerHeartbeatRequest:
        sent = beat_request("w")
        sent.namespace = namespace
        return sent

    await asyncio.gather(
        *(cluster.client.liveness.RecordWorkerHeartbeat(request(f"n{number}")) for number in range(20))
    )
    for number in range(20):
        namespace = f"n{number}"
        owner = cluster.owner_of("w", namespace)
        assert (await owner.harness.describe("w", namespace)).namespace == namespace


async def test_who_gives_up_gives_up_alone(cluster: Cluster) -> None:
    recorder = cluster.owners["a"].recorder
    recorder.gate = gate = asyncio.Event()
    workers = [cluster.worker_owned_by("a", at) for at in range(3)]
    call = cluster.client.liveness.RecordWorkerHeartbeat
    patient = asyncio.ensure_future(call(beat_request(workers[0])))
    await recorder.arrived.wait()
    hasty = asyncio.ensure_future(refusal(call(beat_request(workers[1]), timeout=0.2)))
    gone = call(beat_request(workers[2]))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await hasty).code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not patient.done()
    gate.set()
    assert (await patient).outcome == REGISTERED


async def test_those_whose_shard_moved_are_sent_after_it(cluster: Cluster) -> None:
    workers = [cluster.worker_owned_by("a", at) for at in range(12)]
    moved = shard_id_of(workers[0])
    cluster.move(moved, "b")
    beats = [cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)) for worker in workers]
    assert {result.outcome for result in await asyncio.gather(*beats)} == {REGISTERED}
    for worker in workers:
        expected = "b" if shard_id_of(worker) == moved else "a"
        await cluster.owners[expected].harness.describe(worker)


async def test_a_batch_has_bounds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "BATCH_ITEMS_MAX", 5)
    monkeypatch.setattr(coalescing, "BATCHES_IN_FLIGHT_MAX", 2)
    workers = [cluster.worker_owned_by("a", at) for at in range(50)]
    beats = [cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)) for worker in workers]
    assert {result.outcome for result in await asyncio.gather(*beats)} == {REGISTERED}
    assert len(cluster.owners["a"].recorder.received) >= 10
    assert cluster.frontend.gateway.coalescer._queues == {}


async def test_tracing_does_not_keep_heartbeats_apart(cluster: Cluster) -> None:
    metadata = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    worker = cluster.worker_owned_by("a")
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker), metadata=metadata)
    assert cluster.owners["a"].recorder.methods() == ["RecordWorkerHeartbeats"]
