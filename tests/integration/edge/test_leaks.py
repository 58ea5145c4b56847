"""The edge keeps nothing of a call that is over."""

from __future__ import annotations

import gc
import os

import psutil
import pytest

from tests.integration.edge.edge_server import EdgeServer, running_edge
from tests.integration.edge.raw_http2 import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
    RawConnection,
    call,
    frame,
)

AT_ONCE = 500
GROWTH_BYTES_MAX = 8 << 20
CALLS = int(os.environ.get("LIVENESS_EDGE_CALLS", "30000"))
"""`LIVENESS_EDGE_CALLS=1000000 make test ARGS=tests/integration/edge/test_leaks.py` tries a million."""


async def call_often(server: EdgeServer, raw: RawConnection, first: int, calls: int) -> None:
    """Every tenth call has metadata that no other has, and each kind of answer occurs."""
    paths = ("/t.T/Echo", "/t.T/Echo", "/t.T/Missing", "/t.T/Echo", "/t.T/Chat")
    for start in range(first, first + calls, AT_ONCE):
        raw.send(
            b"".join(
                call(
                    2 * number + 1,
                    paths[number % 5],
                    b"x" * 100,
                    ("number", str(number) if number % 10 == 0 else ""),
                )
                for number in range(start, start + AT_ONCE)
            )
        )
        ended = 0
        while ended < AT_ONCE:
            answer = await raw.frame()
            assert answer is not None
            assert answer.kind in (HEADERS, DATA, SETTINGS, CONTINUATION, WINDOW_UPDATE)
            ended += answer.kind == HEADERS and bool(answer.flags & END_STREAM)
        server.events.clear()


async def grow(calls: int) -> int:
    """By how many bytes the process has grown after so many calls."""
    async with running_edge() as server, await RawConnection.open(server.port) as raw:
        raw.send(frame(WINDOW_UPDATE, payload=(2**31 - 1 - 65_535).to_bytes(4, "big")))
        await call_often(server, raw, 0, 10_000)
        gc.collect()
        before = psutil.Process().memory_info().rss
        await call_often(server, raw, 10_000, calls)
        gc.collect()
        assert server.edge.open_calls() == 0
        assert server.count("calls_open") == 0
        return psutil.Process().memory_info().rss - before


@pytest.mark.timeout(1_200)
async def test_many_calls_leave_no_memory_behind() -> None:
    assert await grow(CALLS) < GROWTH_BYTES_MAX


async def test_a_closed_edge_keeps_no_descriptor_though_python_keeps_it() -> None:
    process = psutil.Process()
    kept = []
    async with running_edge() as server, server.channel():
        kept.append(server)
    before = process.num_fds()
    for _ in range(5):
        async with running_edge() as server:
            kept.append(server)
    assert process.num_fds() == before
