"""What clients of gRPC use, with a client that nobody here wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.edge.edge_server import (
    HOLD,
    MESSAGE_BYTES_MAX,
    EdgeServer,
    liveness_edge,
    running_edge,
)
from tests.integration.edge.raw_http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    WINDOW_UPDATE,
    RawConnection,
    call,
    frame,
)


async def fails(awaited: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaited
    return caught.value


async def test_metadata_peer_deadline_and_message_arrive(server: EdgeServer) -> None:
    async with server.channel() as channel:
        metadata = (("plain", "text"), ("raw-bin", b"\x00\xff,"), ("raw-bin", b""))
        waiting = asyncio.ensure_future(
            channel.unary_unary("/t.T/Hold")(b"request", timeout=7, metadata=metadata)
        )
        _, id, method, headers, deadline_ms, message = await server.event(liveness_edge.CALL)
        server.edge.answer([(id, b"answer")])
        assert await waiting == b"answer"
    assert (method, message) == (HOLD, b"request")
    assert headers.metadata[1:] == metadata
    assert headers.metadata[0][0] == "user-agent"
    assert headers.peer.startswith("ipv4:127.0.0.1:")
    assert headers.certificate is None
    left_ms = deadline_ms - time.monotonic_ns() // 1_000_000
    assert 0 < left_ms <= 7_100


async def test_calls_with_equal_metadata_share_their_headers(server: EdgeServer) -> None:
    async with server.channel() as channel:
        hold = channel.unary_unary("/t.T/Hold")
        calls = [
            hold(b"", timeout=timeout, metadata=(("of", of),))
            for of, timeout in (("a", 5), ("a", 6), ("b", 5))
        ]
        events = [await server.event(liveness_edge.CALL) for _ in calls]
        shared = {dict(event[3].metadata)["of"]: event[3] for event in events}
        assert len({id(event[3]) for event in events}) == 2
        shared["a"].caller = "remembered"
        shared["a"].whatever = 1
        assert shared["b"].caller is None
        server.edge.answer([(event[1], b"") for event in events])
        await asyncio.gather(*calls)


async def test_a_status_arrives_with_message_details_and_trailers(server: EdgeServer) -> None:
    async with server.channel() as channel:
        waiting = asyncio.ensure_future(channel.unary_unary("/t.T/Hold")(b""))
        id = (await server.event(liveness_edge.CALL))[1]
        server.edge.finish(
            id, 9, "50 % wären\nzu viel", [("grpc-status-details-bin", b"\x08\x09"), ("why", "so")]
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "50 % wären\nzu viel"
    assert dict(caught.value.trailing_metadata()) == {"grpc-status-details-bin": b"\x08\x09", "why": "so"}


async def test_metadata_that_grpc_does_not_allow_is_refused_where_it_is_given(server: EdgeServer) -> None:
    for metadata in ([("Upper", "x")], [("grpc-status", "0")], [("text", "two\nlines")]):
        with pytest.raises(ValueError):
            server.edge.finish(1, 0, "", metadata)
        with pytest.raises(ValueError):
            server.edge.initial_metadata(1, metadata)


async def test_a_unary_call_may_have_initial_and_trailing_metadata(server: EdgeServer) -> None:
    async with server.channel() as channel:
        waiting = channel.unary_unary("/t.T/Hold")(b"")
        id = (await server.event(liveness_edge.CALL))[1]
        server.edge.initial_metadata(id, [("first", "1")])
        server.edge.send(id, b"answer")
        server.edge.finish(id, 0, "", [("last", "2")])
        assert await waiting == b"answer"
        assert dict(await waiting.initial_metadata())["first"] == "1"
        assert dict(await waiting.trailing_metadata()) == {"last": "2"}


async def test_messages_of_the_largest_size_go_both_ways_and_larger_ones_are_refused(
    server: EdgeServer,
) -> None:
    async with server.channel() as channel:
        echo = channel.unary_unary("/t.T/Echo")
        largest = bytes(range(256)) * (MESSAGE_BYTES_MAX // 256)
        assert await echo(largest) == largest
        assert await echo(largest, compression=grpc.Compression.Gzip) == largest
        for compression in (None, grpc.Compression.Gzip):
            error = await fails(echo(b"\0" * (MESSAGE_BYTES_MAX + 1), compression=compression))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await echo(b"still") == b"still"
    assert server.calls == 3


async def test_a_client_may_ping_while_it_reads_an_answer() -> None:
    """Clients in Go measure the round trip so."""
    async with running_edge() as server, await RawConnection.open(server.port) as raw:
        raw.send(call(1, "/t.T/Hold", b""))
        id = (await server.event(liveness_edge.CALL))[1]
        server.edge.answer([(id, b"x" * 900_000)])
        pings_answered = received = 0
        raw.send(frame(PING, payload=b"8 bytes."))
        while received < 900_005:
            answer = await raw.frame()
            assert answer is not None
            if answer.kind == PING:
                pings_answered += 1
                raw.send(frame(PING, payload=b"8 bytes."))
            elif answer.kind == DATA:
                received += len(answer.payload)
                room = len(answer.payload).to_bytes(4, "big")
                raw.send(frame(WINDOW_UPDATE, payload=room) + frame(WINDOW_UPDATE, stream=1, payload=room))
        assert pings_answered > 3
        raw.send(call(3, "/t.T/Echo", b""))
        assert (await raw.find(DATA)) is not None


async def test_a_blocking_client_is_served(server: EdgeServer) -> None:
    def call_from_a_thread() -> tuple[bytes, list[bytes]]:
        with grpc.insecure_channel(server.address) as channel:
            echo: Any = channel.unary_unary("/t.T/Echo")
            chat: Any = channel.stream_stream("/t.T/Chat")
            return echo(b"one", timeout=20), list(chat(iter([b"a", b"b"]), timeout=20))

    assert await asyncio.to_thread(call_from_a_thread) == (b"one", [b"a", b"b"])


async def test_methods_and_encodings_that_are_unknown_are_unimplemented(server: EdgeServer) -> None:
    async with server.channel() as channel:
        error = await fails(channel.unary_unary("/t.T/Missing")(b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        error = await fails(
            channel.unary_unary("/t.T/Echo")(b"x" * 1_000, compression=grpc.Compression.Deflate)
        )
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    async with await RawConnection.open(server.port) as raw:
        raw.send(call(1, "/t.T/Echo", b"", ("grpc-encoding", "snappy")))
        answer = await raw.find(HEADERS)
        assert answer is not None
        assert answer.flags & END_STREAM


async def test_a_path_with_a_known_prefix_is_a_call_with_its_path(server: EdgeServer) -> None:
    async with server.channel() as channel:
        waiting = asyncio.ensure_future(channel.unary_unary("/later.S/M")(b"request"))
        _, id, method, _, _, path = await server.event(liveness_edge.OPEN)
        assert (method, path) == (-1, "/later.S/M")
        assert (await server.event(liveness_edge.MESSAGE))[2] == b"request"
        await server.event(liveness_edge.HALF_CLOSE)
        server.edge.send(id, b"answer")
        server.edge.finish(id, 0, "", [])
        assert await waiting == b"answer"


async def test_a_client_that_cancels_and_one_that_vanishes_are_told(server: EdgeServer) -> None:
    async with server.channel() as channel:
        for path, kind in (("/t.T/Hold", liveness_edge.CALL), ("/t.T/Pour", liveness_edge.OPEN)):
            waiting = channel.unary_unary(path)(b"")
            id = (await server.event(kind))[1]
            waiting.cancel()
            assert (await server.event(liveness_edge.CANCEL))[1] == id
            server.edge.answer([(id, b"too late")])
            server.edge.send(id, b"too late")
            server.edge.finish(id, 0, "", [])
        late = asyncio.ensure_future(channel.unary_unary("/t.T/Hold")(b"", timeout=0.05))
        id = (await server.event(liveness_edge.CALL))[1]
        assert (await server.event(liveness_edge.CANCEL))[1] == id
        with pytest.raises(grpc.aio.AioRpcError):
            await late
    raw = await RawConnection.open(server.port)
    raw.send(call(1, "/t.T/Hold", b""))
    id = (await server.event(liveness_edge.CALL))[1]
    raw.close()
    assert (await server.event(liveness_edge.CANCEL))[1] == id
    assert server.edge.open_calls() == 0


async def test_streams_of_all_kinds(server: EdgeServer) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for number in range(200):
            yield b"%d" % number
        yield b"x" * MESSAGE_BYTES_MAX

    expected = [b"%d" % number for number in range(200)] + [b"x" * MESSAGE_BYTES_MAX]
    async with server.channel() as channel:
        chat = channel.stream_stream("/t.T/Chat")(requests())
        assert [answer async for answer in chat] == expected
        assert dict(await chat.trailing_metadata()) == {"answered": "yes"}

        upload = channel.stream_unary("/t.T/Pour")(requests())
        id = (await server.event(liveness_edge.OPEN))[1]
        for message in expected:
            assert (await server.event(liveness_edge.MESSAGE))[2] == message
            server.edge.release(id, len(message))
        await server.event(liveness_edge.HALF_CLOSE)
        server.edge.send(id, b"all")
        server.edge.finish(id, 0, "", [])
        assert await upload == b"all"

        download = channel.unary_stream("/t.T/Pour")(b"")
        id = (await server.event(liveness_edge.OPEN))[1]
        for message in expected:
            server.edge.send(id, message)
        server.edge.finish(id, 0, "", [])
        assert [answer async for answer in download] == expected
    assert server.edge.open_calls() == 0


async def test_an_answer_before_the_end_of_the_requests_ends_the_stream(server: EdgeServer) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    async with server.channel() as channel:
        upload = channel.stream_unary("/t.T/Pour")(requests())
        id = (await server.event(liveness_edge.OPEN))[1]
        server.edge.finish(id, 7, "enough", [])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await upload
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await channel.unary_unary("/t.T/Echo")(b"still") == b"still"


async def test_a_streams_requests_wait_until_the_handler_takes_them() -> None:
    async with running_edge(stream_buffer_bytes=100_000) as server, server.channel() as channel:
        sent = 0

        async def requests() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(200):
                yield b"x" * 50_000
                sent += 1

        upload = channel.stream_unary("/t.T/Pour")(requests())
        id = (await server.event(liveness_edge.OPEN))[1]
        for _ in range(3):
            await server.event(liveness_edge.MESSAGE)
        # Another call passes, the stream stays where it is.
        assert await channel.unary_unary("/t.T/Echo")(b"other") == b"other"
        assert not [event for event in server.events if event[0] == liveness_edge.MESSAGE]
        assert sent < 100
        server.edge.release(id, 150_000, 3)
        for _ in range(197):
            await server.event(liveness_edge.MESSAGE)
            server.edge.release(id, 50_000)
        await server.event(liveness_edge.HALF_CLOSE)
        upload.cancel()


async def test_whoever_sends_to_a_slow_reader_is_told_to_wait_and_when_there_is_room() -> None:
    async with running_edge(stream_buffer_bytes=100_000) as server, server.channel() as channel:
        download = channel.unary_stream("/t.T/Pour")(b"")
        id = (await server.event(liveness_edge.OPEN))[1]
        waiting = sent = 0
        while waiting <= 100_000:
            waiting = server.edge.send(id, b"x" * 60_000)
            sent += 1
        reading = asyncio.ensure_future(_count(download))
        assert (await server.event(liveness_edge.WRITABLE))[1] == id
        server.edge.finish(id, 0, "", [])
        assert await reading == sent


async def _count(answers: Any) -> int:
    return len([answer async for answer in answers])


async def test_one_connection_has_at_most_so_many_calls() -> None:
    async with running_edge(streams_max=5) as server, server.channel() as channel:
        hold = channel.unary_unary("/t.T/Hold")
        calls = [asyncio.ensure_future(hold(b"%d" % number)) for number in range(12)]
        taken = [await server.event(liveness_edge.CALL) for _ in range(5)]
        assert server.edge.open_calls() == 5
        server.edge.answer([(event[1], event[5]) for event in taken])
        for _ in range(7):
            event = await server.event(liveness_edge.CALL)
            server.edge.answer([(event[1], event[5])])
        assert sorted(await asyncio.gather(*calls)) == sorted(b"%d" % number for number in range(12))


async def test_calls_that_were_read_are_answered_while_the_edge_drains(server: EdgeServer) -> None:
    async with server.channel() as channel:
        waiting = asyncio.ensure_future(channel.unary_unary("/t.T/Hold")(b""))
        id = (await server.event(liveness_edge.CALL))[1]
        server.edge.stop_accepting()
        server.edge.drain()
        late = asyncio.ensure_future(channel.unary_unary("/t.T/Echo")(b"late", timeout=20))
        await server.until(lambda: late.done())
        assert server.edge.open_calls() == 1
        server.edge.answer([(id, b"answer")])
        assert await waiting == b"answer"
        await server.until(lambda: server.count("connections_open") == 0)
        await asyncio.gather(late, return_exceptions=True)


async def test_the_last_goaway_names_the_last_call_that_was_read(server: EdgeServer) -> None:
    async with await RawConnection.open(server.port) as raw:
        raw.send(call(1, "/t.T/Hold", b"") + call(3, "/t.T/Hold", b""))
        ids = [(await server.event(liveness_edge.CALL))[1] for _ in range(2)]
        server.edge.drain()
        warning, ping = await raw.find(GOAWAY), await raw.find(PING)
        assert warning is not None
        assert ping is not None
        assert warning.last_stream == 2**31 - 1
        raw.send(call(5, "/t.T/Hold", b"") + frame(PING, ACK, payload=ping.payload))
        ids.append((await server.event(liveness_edge.CALL))[1])
        last = await raw.find(GOAWAY)
        assert last is not None
        assert last.last_stream == 5
        server.edge.answer([(id, b"answer") for id in ids])
        for _ in ids:
            assert (await raw.find(DATA)) is not None
        assert await raw.closed() is None


async def test_close_lets_large_answers_out_and_ends_the_rest() -> None:
    server = EdgeServer()
    server.start()
    async with server.channel() as channel:
        hold = channel.unary_unary("/t.T/Hold")
        answered, unanswered = asyncio.ensure_future(hold(b"a")), asyncio.ensure_future(hold(b"b"))
        for _ in range(2):
            event = await server.event(liveness_edge.CALL)
            if event[5] == b"a":
                server.edge.answer([(event[1], b"x" * MESSAGE_BYTES_MAX)])
        asyncio.get_running_loop().remove_reader(server.edge.fileno())
        await asyncio.to_thread(server.edge.close, 10_000)
        assert len(await answered) == MESSAGE_BYTES_MAX
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unanswered
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    server = EdgeServer()
    server.edge.bind(f"unix:{tmp_path}/edge", 0)
    server.start()
    connected: Any = grpc.aio.insecure_channel(
        f"unix:{tmp_path}/edge", options=[("grpc.default_authority", "localhost")]
    )
    async with connected as channel:
        waiting = channel.unary_unary("/t.T/Hold")(b"")
        event = await server.event(liveness_edge.CALL)
        server.edge.answer([(event[1], b"answer")])
        assert await waiting == b"answer"
    assert event[3].peer == "unix:"
    server.stop()


async def test_a_port_that_is_taken_is_an_os_error(server: EdgeServer) -> None:
    with pytest.raises(OSError):
        liveness_edge.Edge().bind("127.0.0.1", server.port)
