"""The bare HTTP/2 client of the benchmarks, against a real gRPC server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from bench import http2_load

PATH = "/bench.Echo/Call"


class Echo:
    def __init__(self) -> None:
        self.address = ""
        self.requests: Counter[bytes] = Counter()
        self.headers: set[tuple[str, str]] = set()

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.requests[request] += 1
        self.headers |= {tuple(pair) for pair in context.invocation_metadata()}
        if request == b"refuse":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        return b"answer"


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo, server = Echo(), grpc.aio.server()
    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(echo.answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    echo.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield echo
    await server.stop(None)


@pytest.mark.parametrize("size", [0, 100, 20_000, 60_000], ids=str)
async def test_every_call_arrives_once_with_its_body_and_headers(echo: Echo, size: int) -> None:
    """Bodies are larger than a frame, and together larger than the window of a connection."""
    header = ("authorization", "Bearer " + "x" * 200)
    with (
        closing(http2_load.Connection(echo.address, PATH, b"a" * size, 4, (header,))) as first,
        closing(http2_load.Connection(echo.address, PATH, b"b" * (size + 1), 4)) as second,
    ):
        for _ in range(2):
            assert await asyncio.to_thread(http2_load.run, [first, second], 25) > 0
    assert echo.requests == {b"a" * size: 50, b"b" * (size + 1): 50}
    assert header in echo.headers


async def test_a_refused_call_ends_the_measurement(echo: Echo) -> None:
    with (
        closing(http2_load.Connection(echo.address, PATH, b"refuse", 4)) as connection,
        pytest.raises(http2_load.CallFailed),
    ):
        await asyncio.to_thread(http2_load.run, [connection], 5)
