"""Single heartbeats for one owner are sent as batches, and each caller gets its own answer."""

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


async def test_many_heartbeats_are_sent_in_few_calls(cluster: Cluster) -> None:
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


async def test_heartbeats_do_not_wait_for_the_answer_to_an_earlier_batch(cluster: Cluster) -> None:
    """The owner delays the first batch; the second is sent nevertheless."""
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


async def test_each_caller_gets_its_own_answer(cluster: Cluster) -> None:
    """It has the same code, message and details as that of a single call."""
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


async def test_heartbeats_of_different_namespaces_are_not_mixed(cluster: Cluster) -> None:
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


async def test_a_caller_that_times_out_or_cancels_does_not_affect_others(cluster: Cluster) -> None:
    recorder = cluster.owners["a"].recorder
    recorder.gate = gate = asyncio.Event()
    workers = [cluster.worker_owned_by("a", at) for at in range(3)]
    call = cluster.client.liveness.RecordWorkerHeartbeat
    long_call = asyncio.ensure_future(call(beat_request(workers[0])))
    await recorder.arrived.wait()
    short_call = asyncio.ensure_future(refusal(call(beat_request(workers[1]), timeout=0.2)))
    cancelled_call = call(beat_request(workers[2]))
    await asyncio.sleep(0)
    cancelled_call.cancel()
    assert (await short_call).code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not long_call.done()
    gate.set()
    assert (await long_call).outcome == REGISTERED


async def test_heartbeats_follow_a_shard_that_moved(cluster: Cluster) -> None:
    workers = [cluster.worker_owned_by("a", at) for at in range(12)]
    moved = shard_id_of(workers[0])
    cluster.move(moved, "b")
    beats = [cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)) for worker in workers]
    assert {result.outcome for result in await asyncio.gather(*beats)} == {REGISTERED}
    for worker in workers:
        expected = "b" if shard_id_of(worker) == moved else "a"
        await cluster.owners[expected].harness.describe(worker)


async def test_the_size_and_number_of_batches_are_bounded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "BATCH_ITEMS_MAX", 5)
    monkeypatch.setattr(coalescing, "BATCHES_IN_FLIGHT_MAX", 2)
    workers = [cluster.worker_owned_by("a", at) for at in range(50)]
    beats = [cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker)) for worker in workers]
    assert {result.outcome for result in await asyncio.gather(*beats)} == {REGISTERED}
    assert len(cluster.owners["a"].recorder.received) >= 10
    assert cluster.frontend.gateway.coalescer._queues == {}


async def test_trace_metadata_does_not_prevent_coalescing(cluster: Cluster) -> None:
    metadata = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    worker = cluster.worker_owned_by("a")
    await cluster.client.liveness.RecordWorkerHeartbeat(beat_request(worker), metadata=metadata)
    assert cluster.owners["a"].recorder.methods() == ["RecordWorkerHeartbeats"]
