"""Everything passes unchanged through a bridge: services, streams, bytes, metadata, deadlines, cancellation, errors, size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from liveness.bridges.temporal.bridge import TemporalBridge
from liveness.bridges.temporal.settings import ListenTls, UpstreamTls
from tests.certificates import Authority
from tests.free_ports import free_port
from tests.integration.bridges.temporal.conftest import StartBridge
from tests.integration.bridges.temporal.upstream_server import (
    DETAILS,
    OTHER,
    SERVICE,
    UNLIMITED,
    UpstreamServer,
)

LIMIT_S = 30


@pytest.fixture
async def channel(bridge: TemporalBridge) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(bridge.address, options=UNLIMITED) as channel:
        yield channel


async def test_a_unary_call_passes_with_its_metadata_and_deadline(
    channel: Any, upstream: UpstreamServer
) -> None:
    metadata = (("x-text", "a"), ("x-data-bin", b"\x00\xff"), ("authorization", "Bearer t"))
    answer = await channel.unary_unary(SERVICE + "GetSystemInfo")(
        b"\x0a\x01x", metadata=metadata, timeout=LIMIT_S
    )
    assert answer == b"\x0a\x01x"
    assert {name: upstream.metadata[name] for name, _ in metadata} == dict(metadata)
    assert upstream.time_remaining is not None
    assert 0 < upstream.time_remaining < LIMIT_S + 1  # gRPC rounds it up on its way


@pytest.mark.parametrize("method", [SERVICE + "DescribeNamespace", OTHER + "DescribeNamespace"])
async def test_an_error_passes_with_its_details(channel: Any, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(method)(b"", timeout=LIMIT_S)
    error = raised.value
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "it is göne")
    trailing = dict(error.trailing_metadata())
    assert trailing["grpc-status-details-bin"] == DETAILS
    assert trailing["more-bin"] == b"\x01\x80"
    assert trailing["text"] == "x"


async def test_streams_of_unknown_services_pass_both_ways(channel: Any) -> None:
    call = channel.stream_stream(OTHER + "Echo")()
    for number in range(3):
        # Each answer comes before the next message is sent.
        await call.write(b"%d" % number)
        assert await asyncio.wait_for(call.read(), LIMIT_S) == b"%d" % number
    await call.done_writing()
    assert await asyncio.wait_for(call.read(), LIMIT_S) is grpc.aio.EOF
    assert dict(await call.initial_metadata())["begins-bin"] == b"\x00\xfe"
    assert dict(await call.trailing_metadata())["ends-bin"] == b"\x00\xff"
    assert await call.code() is grpc.StatusCode.OK


async def test_an_unknown_method_is_refused_by_the_server_itself(channel: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(OTHER + "Unknown")(b"", timeout=LIMIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", [SERVICE + "PollWorkflowTaskQueue", OTHER + "Hang"])
async def test_a_cancelled_call_is_cancelled_at_the_server(
    channel: Any, upstream: UpstreamServer, method: str
) -> None:
    call = channel.unary_unary(method)(b"", timeout=LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        await upstream.reached.wait()
        call.cancel()
        await upstream.cancelled.wait()


async def test_a_call_ends_with_its_deadline(channel: Any, upstream: UpstreamServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(SERVICE + "PollWorkflowTaskQueue")(b"", timeout=0.3)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("method", [SERVICE + "GetSystemInfo", OTHER + "Echo"])
async def test_messages_of_any_size_pass(channel: Any, method: str) -> None:
    message = bytes(20 * 1024 * 1024)
    assert await channel.unary_unary(method)(message, timeout=LIMIT_S) == message


async def test_a_message_that_cannot_be_read_passes(channel: Any, upstream: UpstreamServer) -> None:
    upstream.answers["RespondActivityTaskCompleted"] = b"fine"
    answer = await channel.unary_unary(SERVICE + "RespondActivityTaskCompleted")(b"\xff\xff", timeout=LIMIT_S)
    assert answer == b"fine"


async def test_an_api_key_is_added_to_calls_without_a_credential(
    start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    bridge = await start_bridge(upstream_api_key="key")
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "GetSystemInfo")
        await call(b"", timeout=LIMIT_S)
        assert upstream.metadata["authorization"] == "Bearer key"
        await call(b"", timeout=LIMIT_S, metadata=(("authorization", "Bearer own"),))
        assert upstream.metadata["authorization"] == "Bearer own"


async def test_another_address_is_used_when_one_is_away(
    start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    gone = UpstreamServer()
    await gone.start()
    await gone.stop()
    bridge = await start_bridge(upstream=(gone.address, upstream.address))
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "GetSystemInfo")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"", timeout=LIMIT_S)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE  # clients try again after this code
        assert await call(b"x", timeout=LIMIT_S) == b"x"


async def test_a_bridge_may_start_before_temporal_and_says_that_it_is_away(start_bridge: StartBridge) -> None:
    port, upstream = free_port(), UpstreamServer()
    bridge = await start_bridge(upstream=(f"127.0.0.1:{port}",))
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "GetSystemInfo")
        with capture_logs() as logs:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"", timeout=LIMIT_S)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            await upstream.start(port=port)
            async with asyncio.timeout(LIMIT_S):
                while not await is_answered(call):
                    await asyncio.sleep(0.05)
        away = f"Temporal does not answer at 127.0.0.1:{port}"
        events = [(log["log_level"], log["event"]) for log in logs if "emporal" in str(log)]
        assert events == [("warning", away), ("info", "works again")]
    await upstream.stop()


async def is_answered(call: Any) -> bool:
    try:
        return bool(await call(b"x", timeout=LIMIT_S) == b"x")
    except grpc.aio.AioRpcError:
        return False


async def test_both_sides_may_use_certificates(start_bridge: StartBridge) -> None:
    authority = Authority()
    server, client = authority.issue_server(), authority.issue_client("worker")
    upstream = UpstreamServer()
    await upstream.start(
        grpc.ssl_server_credentials([(server.key_pem(), server.cert_pem)], authority.cert_pem, True)
    )
    bridge = await start_bridge(
        upstream=(upstream.address,),
        upstream_tls=UpstreamTls(
            ca=authority.cert_pem, certificate=client.cert_pem, key=client.key_pem(), server_name="localhost"
        ),
        listen_tls=ListenTls(certificate=server.cert_pem, key=server.key_pem(), client_ca=authority.cert_pem),
    )
    credentials = grpc.ssl_channel_credentials(authority.cert_pem, client.key_pem(), client.cert_pem)
    async with grpc.aio.secure_channel(bridge.address, credentials) as channel:
        call: Any = channel.unary_unary(SERVICE + "GetSystemInfo")
        assert await call(b"x", timeout=LIMIT_S) == b"x"
    await upstream.stop()
