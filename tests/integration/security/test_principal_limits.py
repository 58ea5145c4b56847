"""A server refuses calls, bytes and streams of a principal above its limits, and serves it again later."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from liveness.security.principal_limits import CONNECTION_MS
from liveness.server.oversight import host_of, is_loopback_host
from liveness.v1 import service_pb2, worker_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_suspicion import heartbeat, metric
from tests.integration.security.tls_server import connect
from tests.integration.server.server_harness import Refusal, ServerHarness, unpack


async def refusal_of(client: Client) -> Refusal | None:
    beat = worker_pb2.WorkerHeartbeat(worker_instance_key="w", session_id="s")
    try:
        await client.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(namespace="shop", heartbeat=beat)
        )
    except grpc.aio.AioRpcError as error:
        return unpack(error)
    return None


async def test_calls_of_a_principal_are_limited_and_it_recovers(auth: AuthHarness) -> None:
    await auth.restart(principal_calls_per_s=10.0, principal_calls_burst=20)
    ann, bob = await auth.caller("ann", "worker:shop"), await auth.caller("bob", "reader:shop")
    refused = [await refusal_of(ann) for _ in range(25)]
    assert refused[:20] == [None] * 20
    for each in refused[20:]:
        assert each is not None
        assert (each.code, each.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert each.retry_ms
    assert metric(auth, "liveness_refused_total", "calls") == 5
    other = await refusal_of(bob)
    assert other is not None
    assert other.reason == "PERMISSION_DENIED", "another principal has a limit of its own"
    auth.clock.move(1_000)
    assert [await refusal_of(ann) for _ in range(10)] == [None] * 10


async def test_a_batch_is_one_call_and_its_bytes(auth: AuthHarness) -> None:
    await auth.restart(principal_calls_per_s=1.0, principal_calls_burst=4, principal_bytes_per_s=1_000.0)
    ann = await auth.caller("ann", "worker:shop")
    beats = [worker_pb2.WorkerHeartbeat(worker_instance_key=f"w-{number}") for number in range(900)]
    request = service_pb2.RecordWorkerHeartbeatsRequest(namespace="shop", heartbeats=beats)
    assert request.ByteSize() > 5_000
    await ann.liveness.RecordWorkerHeartbeats(request)
    assert await heartbeat(ann, "w") == "RESOURCE_EXHAUSTED"
    assert metric(auth, "liveness_refused_total", "bytes") == 1
    auth.clock.move(request.ByteSize())
    assert await heartbeat(ann, "w") == "OK"


async def test_open_streams_of_a_principal_are_limited(auth: AuthHarness) -> None:
    await auth.restart(principal_streams_max=2)
    ann = await auth.caller("ann", "worker:shop", "reader:shop")
    attached = []
    for number in range(2):
        await heartbeat(ann, f"w-{number}")
        stream = ann.liveness.Attach(timeout=30)
        attach = service_pb2.AttachRequest.Attach(
            namespace="shop", worker_instance_key=f"w-{number}", session_id="s"
        )
        await stream.write(service_pb2.AttachRequest(attach=attach))
        await stream.read()
        attached.append(stream)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ann.liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace="shop"), timeout=30).read()
    assert unpack(refused.value).reason == "TOO_MANY_STREAMS"
    await attached[0].done_writing()
    while await attached[0].read() is not grpc.aio.EOF:
        pass  # orders to the worker
    watch = ann.liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace="shop"), timeout=30)
    assert await watch.read() is not grpc.aio.EOF
    watch.cancel()
    attached[1].cancel()


async def test_connections_of_a_principal_are_limited(auth: AuthHarness) -> None:
    await auth.restart(principal_connections_max=2)
    ann, bob = [await auth.caller(name, "worker:shop") for name in ("ann", "bob")]
    async with AsyncExitStack() as stack:
        channels: list[Any] = [
            await stack.enter_async_context(connect(auth.server.address, None)) for _ in range(3)
        ]
        on_each = [Client(channel, ann.token) for channel in channels]
        assert [await heartbeat(each, "w") for each in on_each] == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert await heartbeat(Client(channels[2], bob.token), "w-2") == "OK"
        assert [await heartbeat(each, "w") for each in on_each[:2]] == ["OK", "OK"]
        assert metric(auth, "liveness_refused_total", "connections") == 1
        auth.clock.move(CONNECTION_MS)
        assert await heartbeat(on_each[2], "w") == "OK"


async def test_loopback_without_authentication_is_not_limited(stopped_harness: ServerHarness) -> None:
    harness = await stopped_harness.start(principal_calls_per_s=1.0, principal_calls_burst=1)
    for _ in range(20):
        await harness.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(
                namespace="shop", heartbeat=worker_pb2.WorkerHeartbeat(worker_instance_key="w")
            )
        )


@pytest.mark.parametrize(
    ("peer", "host", "is_loopback"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1", True),
        ("ipv4:10.1.2.3:5000", "10.1.2.3", False),
        ("ipv6:%5B::1%5D:5000", "::1", True),
        ("ipv6:[fe80::1]:5000", "fe80::1", False),
        ("unix:/tmp/socket", "local", True),
        ("", "", False),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str, is_loopback: bool) -> None:
    assert host_of(peer) == host
    assert is_loopback_host(host) == is_loopback
