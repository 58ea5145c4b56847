"""Clients that are slow, silent or hostile lose their connection, and others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.integration.edge.edge_server import EdgeServer, liveness_edge, running_edge
from tests.integration.edge.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawConnection,
    call,
    frame,
    header_block,
    message,
)

CANCEL = (8).to_bytes(4, "big")
INITIAL_WINDOW = 4


async def others_are_served(server: EdgeServer) -> None:
    async with server.channel() as channel:
        assert await channel.unary_unary("/t.T/Echo")(b"other", timeout=20) == b"other"


def rapid_resets(raw: RawConnection) -> None:
    for stream in range(1, 2_001, 2):
        raw.send(call(stream, "/t.T/Hold", b"") + frame(RST_STREAM, stream=stream, payload=CANCEL))


def resets_before_a_request_is_whole(raw: RawConnection) -> None:
    for stream in range(1, 2_001, 2):
        raw.send(frame(HEADERS, END_HEADERS, stream, header_block("/t.T/Echo")))
        raw.send(frame(RST_STREAM, stream=stream, payload=CANCEL))


def pings(raw: RawConnection) -> None:
    raw.send(frame(PING, payload=b"8 bytes.") * 1_000)


def settings(raw: RawConnection) -> None:
    raw.send(frame(SETTINGS) * 1_000)


def empty_data(raw: RawConnection) -> None:
    raw.send(frame(HEADERS, END_HEADERS, 1, header_block("/t.T/Chat")))
    raw.send(frame(DATA, stream=1) * 1_000)


def priorities(raw: RawConnection) -> None:
    raw.send(frame(PRIORITY, stream=3, payload=b"\0\0\0\0\x10") * 1_000)


def window_updates(raw: RawConnection) -> None:
    raw.send(frame(WINDOW_UPDATE, payload=b"\0\0\0\x01") * 1_000)


def empty_continuations(raw: RawConnection) -> None:
    raw.send(frame(HEADERS, 0, 1, header_block("/t.T/Echo")))
    raw.send(frame(CONTINUATION, stream=1) * 1_000)


@pytest.mark.parametrize(
    ("attack", "counter"),
    [
        (rapid_resets, "closed_resets"),
        (resets_before_a_request_is_whole, "closed_resets"),
        (pings, "closed_pings"),
        (settings, "closed_control_frames"),
        (empty_data, None),
        (priorities, "closed_control_frames"),
        (window_updates, "closed_control_frames"),
        (empty_continuations, None),
    ],
)
async def test_floods_end_their_connection(
    attack: Callable[[RawConnection], None], counter: str | None
) -> None:
    """Without a counter, either h2 or the edge itself is the first to notice."""
    async with running_edge(rapid_resets_max=100, control_frames_max=200) as server:
        async with await RawConnection.open(server.port) as raw:
            attack(raw)
            code = await raw.closed()
            if counter is not None:
                assert server.count(counter) == 1
                assert code in (
                    ENHANCE_YOUR_CALM,
                    None,
                )  # a connection that is reset loses what was said last
        await server.until(lambda: server.edge.open_calls() == 0)
        await others_are_served(server)


async def test_a_client_that_cancels_old_calls_is_no_attacker() -> None:
    async with running_edge(rapid_resets_max=10) as server, server.channel() as channel:
        calls = [channel.unary_unary("/t.T/Hold")(b"") for _ in range(100)]
        for _ in calls:
            await server.event(liveness_edge.CALL)
        await asyncio.sleep(1.1)  # what is rapid, is so by the clock of the edge
        for waiting in calls:
            waiting.cancel()
        for _ in calls:
            await server.event(liveness_edge.CANCEL)
        assert await channel.unary_unary("/t.T/Echo")(b"on") == b"on"
        assert server.count("connections") == 1


async def test_a_connection_without_a_word_is_closed_in_time() -> None:
    async with running_edge(handshake_timeout_ms=200) as server:
        async with await RawConnection.open(server.port, introduces_itself=False) as silent:
            await silent.closed()
        assert server.count("handshakes_failed") == 1
        async with await RawConnection.open(server.port, introduces_itself=False) as half:
            half.send(PREFACE)
            await half.closed()
        assert server.count("closed_slow") == 1


async def test_headers_that_do_not_end_close_the_connection() -> None:
    async with running_edge(handshake_timeout_ms=300) as server, await RawConnection.open(server.port) as raw:
        raw.send(frame(HEADERS, 0, 1, header_block("/t.T/Echo")))
        await raw.closed()
        assert server.count("closed_slow") == 1


async def test_a_frame_that_does_not_end_closes_the_connection() -> None:
    async with running_edge(message_timeout_ms=300) as server, await RawConnection.open(server.port) as raw:
        raw.send(frame(DATA, 0, 1, b"x" * 100)[:50])
        await raw.closed()
        assert server.count("closed_slow") == 1


@pytest.mark.parametrize("path", ["/t.T/Echo", "/t.T/Chat"])
async def test_a_message_that_does_not_end_is_refused(path: str) -> None:
    async with running_edge(message_timeout_ms=300) as server, await RawConnection.open(server.port) as raw:
        raw.send(frame(HEADERS, END_HEADERS, 1, header_block(path)))
        raw.send(frame(DATA, 0, 1, message(b"x" * 100)[:50]))
        answer = await raw.find(HEADERS)
        assert answer is not None
        assert answer.flags & END_STREAM
        assert (await raw.find(RST_STREAM)) is not None
        await server.until(lambda: server.edge.open_calls() == 0)
        raw.send(call(3, "/t.T/Echo", b"on"))
        assert (await raw.find(DATA)) is not None


@pytest.mark.parametrize("limit", ["unfinished_bytes_max", "unfinished_bytes_in_all_max"])
async def test_too_much_that_is_unfinished_is_refused(limit: str) -> None:
    async with (
        running_edge(**{limit: 100_000}) as server,
        await RawConnection.open(server.port) as raw,
    ):
        assert (await raw.find(WINDOW_UPDATE)) is not None  # from now on there is room for so much
        for stream in range(1, 15, 2):
            part = message(b"x" * 20_000)[:16_000]
            raw.send(
                frame(HEADERS, END_HEADERS, stream, header_block("/t.T/Echo")) + frame(DATA, 0, stream, part)
            )
        answer = await raw.find(HEADERS)
        assert answer is not None
        assert answer.stream == 13
        raw.send(frame(DATA, END_STREAM, 1, message(b"x" * 20_000)[16_000:]))
        answer = await raw.find(HEADERS)
        assert answer is not None
        assert answer.stream == 1


async def test_an_idle_connection_is_closed_and_one_with_a_call_is_not() -> None:
    async with (
        running_edge(idle_ms_max=300) as server,
        await RawConnection.open(server.port) as busy,
        await RawConnection.open(server.port) as idle,
    ):
        busy.send(call(1, "/t.T/Hold", b""))
        id = (await server.event(liveness_edge.CALL))[1]
        assert (await idle.find(GOAWAY)) is not None
        assert server.count("closed_idle") == 1
        server.edge.answer([(id, b"answer")])
        assert (await busy.find(DATA)) is not None


async def test_a_silent_client_with_calls_is_asked_and_then_given_up() -> None:
    async with running_edge(keepalive_ms=200, keepalive_timeout_ms=300) as server:
        async with await RawConnection.open(server.port) as raw:
            raw.send(call(1, "/t.T/Hold", b""))
            id = (await server.event(liveness_edge.CALL))[1]
            for _ in range(2):
                ping = await raw.find(PING)
                assert ping is not None
                raw.send(frame(PING, ACK, payload=ping.payload))
            assert (await server.event(liveness_edge.CANCEL))[1] == id
            await raw.closed()
        assert server.count("closed_silent") == 1


async def test_headers_above_the_limit_are_refused() -> None:
    async with running_edge(header_bytes_max=2_000) as server, await RawConnection.open(server.port) as raw:
        raw.send(call(1, "/t.T/Echo", b"", ("large", "x" * 3_000)))
        answer = await raw.find(HEADERS)
        assert answer is not None
        assert answer.flags & END_STREAM
        raw.send(call(3, "/t.T/Echo", b"on", ("small", "x" * 500)))
        assert (await raw.find(DATA)) is not None
        assert server.calls == 1


async def test_connections_above_the_limit_are_closed() -> None:
    async with running_edge(connections_max=2) as server:
        kept = [await RawConnection.open(server.port) for _ in range(2)]
        await server.until(lambda: server.count("connections_open") == 2)
        async with await RawConnection.open(server.port) as third:
            assert await third.frame() is None
        assert server.count("connections_refused") == 1
        for connection in kept:
            connection.close()
        await server.until(lambda: server.count("connections_open") == 0)
        await others_are_served(server)


async def test_a_client_that_reads_no_answers_is_given_up_before_they_fill_the_memory() -> None:
    async with running_edge(unread_bytes_max=20_000_000) as server:
        window = (2**31 - 1).to_bytes(4, "big")
        raw = await RawConnection.open(server.port, settings=b"\0" + bytes((INITIAL_WINDOW,)) + window)
        async with raw:
            raw.send(b"".join(call(stream, "/t.T/Hold", b"") for stream in range(1, 101, 2)))
            for _ in range(50):
                id = (await server.event(liveness_edge.CALL))[1]
                server.edge.answer([(id, b"x" * 1_000_000)])
            await server.until(lambda: server.count("closed_unread") == 1)
        await server.until(lambda: server.edge.open_calls() == 0)
        await others_are_served(server)


async def test_an_answer_that_its_client_does_not_read_is_given_up_in_time() -> None:
    async with running_edge(write_timeout_ms=300) as server:
        raw = await RawConnection.open(
            server.port, settings=b"\0" + bytes((INITIAL_WINDOW,)) + (10).to_bytes(4, "big")
        )
        async with raw:
            raw.send(call(1, "/t.T/Hold", b""))
            id = (await server.event(liveness_edge.CALL))[1]
            server.edge.answer([(id, b"x" * 10_000)])
            assert (await raw.find(RST_STREAM)) is not None
            await server.until(lambda: server.count("answers_unread") == 1)
            assert server.edge.open_calls() == 0


async def test_while_python_is_behind_nothing_is_read() -> None:
    server = EdgeServer(waiting_calls_max=50)
    server.start()
    loop = asyncio.get_running_loop()
    loop.remove_reader(server.edge.fileno())
    async with await RawConnection.open(server.port) as raw, await RawConnection.open(server.port) as other:
        assert (await raw.find(WINDOW_UPDATE)) is not None
        for start in range(0, 700, 50):
            numbers = range(start, start + 50)
            raw.send(b"".join(call(2 * number + 1, "/t.T/Echo", b"x" * 10_000) for number in numbers))
        await server.until(lambda: server.count("calls") >= 50)
        other.send(call(1, "/t.T/Echo", b"x"))
        await asyncio.sleep(0.3)  # long enough for an edge that goes on reading
        assert server.count("calls") < 500
        loop.add_reader(server.edge.fileno(), server.take)
        await server.until(lambda: server.count("calls") == 701)
        assert (await other.find(DATA)) is not None
    server.stop()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 100]
)
async def test_what_is_not_http2_is_closed(server: EdgeServer, garbage: bytes) -> None:
    async with await RawConnection.open(server.port, introduces_itself=False) as raw:
        raw.send(garbage)
        if len(garbage) < len(PREFACE):
            raw._writer.write_eof()
        await raw.closed()
    await others_are_served(server)


async def test_a_request_that_is_no_call_is_told_what_the_port_is_for(server: EdgeServer) -> None:
    async with await RawConnection.open(server.port) as raw:
        block = header_block("/").replace(b"application/grpc", b"application/json")
        raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
        answer = await raw.find(DATA)
        assert answer is not None
        assert answer.payload == b"This port serves gRPC.\n"
