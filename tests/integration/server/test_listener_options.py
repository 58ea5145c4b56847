"""What one connection may send and open."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import grpc

from liveness.server.listener_options import METADATA_BYTES_MAX
from liveness.v1 import service_pb2, worker_pb2
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.server.http2_frames import PREFACE, SETTINGS, frame, opened_and_reset
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal

INFO = "/liveness.v1.LivenessService/GetServerInfo"
RESETS_PER_ROUND = 5_000
ROUNDS = 8
HEARTBEATS_PER_ROUND = 20


async def test_streams_that_one_connection_opens_and_resets_cancel_no_call_of_another(
    sqlite_harness: ServerHarness,
) -> None:
    host, _, port = sqlite_harness.server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
    drain = asyncio.create_task(_read_all(reader))
    outcomes: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(
        sqlite_harness.server.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        stub = LivenessServiceStub(channel)

        async def beat(worker: int, sequence: int) -> None:
            message = worker_pb2.WorkerHeartbeat(
                worker_instance_key=f"w{worker}", session_id="s", sequence=sequence
            )
            request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=message)
            try:
                await stub.RecordWorkerHeartbeat(request, timeout=30)
                outcomes["OK"] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[error.code().name] += 1

        for number in range(ROUNDS):
            with suppress(ConnectionError):
                writer.write(opened_and_reset(INFO, 1 + 2 * number * RESETS_PER_ROUND, RESETS_PER_ROUND))
            await asyncio.gather(*(beat(worker, number + 1) for worker in range(HEARTBEATS_PER_ROUND)))
    writer.close()
    drain.cancel()
    assert outcomes == {"OK": ROUNDS * HEARTBEATS_PER_ROUND}


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


async def test_large_metadata_is_refused(sqlite_harness: ServerHarness) -> None:
    call = sqlite_harness.liveness.GetServerInfo
    await call(service_pb2.GetServerInfoRequest(), metadata=[("x", "y" * (METADATA_BYTES_MAX - 2_000))])
    refused = await refusal(
        call(service_pb2.GetServerInfoRequest(), metadata=[("x", "y" * METADATA_BYTES_MAX)])
    )
    # The edge answers as HTTP does, with 431, before it knows that the request is a call.
    is_edge = sqlite_harness.server.listener == "edge"
    assert refused.code is (grpc.StatusCode.UNKNOWN if is_edge else grpc.StatusCode.RESOURCE_EXHAUSTED)
