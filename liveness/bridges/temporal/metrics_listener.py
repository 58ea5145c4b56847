"""Serves the metrics of a bridge, and whether it runs, over HTTP: two pages, no dependency."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liveness.bridges.temporal.bridge import ListenFailed

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 10.0


async def start_metrics(address: str, metrics: Callable[[], tuple[bytes, str]]) -> asyncio.Server:
    """`address`: HOST:PORT. Answers /metrics and /healthz."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head.split(b" ", 2), metrics))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # the client is gone, or sends no HTTP
        finally:
            writer.close()

    host, _, port = address.rpartition(":")
    try:
        return await asyncio.start_server(answer, host.strip("[]"), int(port), limit=REQUEST_BYTES_MAX)
    except OSError:
        raise ListenFailed(
            f"cannot serve metrics on {address}: it is in use, or not an address of this machine"
        ) from None


def _response(request: list[bytes], metrics: Callable[[], tuple[bytes, str]]) -> bytes:
    path = request[1].partition(b"?")[0] if len(request) > 2 else b""
    status, body, content_type = "404 Not Found", b"There are /metrics and /healthz.\n", "text/plain"
    if path == b"/metrics":
        status, (body, content_type) = "200 OK", metrics()
    elif path == b"/healthz":
        status, body = "200 OK", b"ok\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
