"""The head of a request: its size, its lines, and how it says where the body ends."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from tests.integration.http.http_client import Answer, Client
from tests.integration.http.http_harness import HttpHarness

HEARTBEAT = "/v1/namespaces/orders/workers/w/heartbeat"
POST = f"POST {HEARTBEAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


async def raw_answer(client: Client, *parts: bytes) -> Answer:
    async with client.connect() as http_connection:
        for part in parts:
            http_connection.writer.write(part)
            await http_connection.writer.drain()
        return await http_connection.answer()


async def test_a_request_may_not_say_twice_where_its_body_ends(http_harness: HttpHarness) -> None:
    """A proxy may believe Content-Length, and this server Transfer-Encoding."""
    for framing in (
        b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
    ):
        body = b"2\r\n{}\r\n0\r\n\r\n"
        answer = await raw_answer(http_harness.client, POST + framing + b"\r\n" + body)
        assert (answer.code, answer.error["reason"]) == (400, "MALFORMED_REQUEST")
        assert "both Content-Length and Transfer-Encoding" in answer.error["message"]
        assert answer.headers["connection"] == "close"
    assert await http_harness.harness.count() == {}


async def test_the_number_of_headers_is_limited(client: Client) -> None:
    lines = b"".join(b"X-%d: a\r\n" % n for n in range(98))
    assert (await raw_answer(client, b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")).code == 200
    assert (
        await raw_answer(client, b"GET /healthz HTTP/1.1\r\nHost: a\r\n", lines, b"X: a\r\n\r\n")
    ).code == 200
    many = await raw_answer(client, b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + lines + b"X: a\r\nY: a\r\n\r\n")
    assert (many.code, many.error["reason"]) == (431, "HEADERS_TOO_LARGE")
    assert "at most 100 headers" in many.error["message"]


async def test_lines_of_a_body_do_not_count_as_headers(client: Client) -> None:
    body = b"{" + b"\r\n" * 1_000 + b"}"
    assert (await raw_answer(client, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)).code == 200


@pytest.mark.parametrize("parts", [1, 7])
async def test_the_size_of_the_head_is_limited(client: Client, parts: int) -> None:
    """In one piece it was accepted: only what arrives in several is counted by the library."""
    head = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 140_000 + b"\r\n\r\n"
    step = -(-len(head) // parts)
    answer = await raw_answer(client, *(head[at : at + step] for at in range(0, len(head), step)))
    assert (answer.code, answer.error["reason"]) == (431, "HEADERS_TOO_LARGE")


async def test_the_size_of_the_request_line_is_limited(client: Client) -> None:
    answer = await raw_answer(client, b"GET /healthz?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (answer.code, answer.error["reason"]) == (414, "REQUEST_LINE_TOO_LARGE")
    endless = await raw_answer(client, b"GET /healthz?" + b"a" * 70_000)
    assert (endless.code, endless.error["reason"]) == (414, "REQUEST_LINE_TOO_LARGE")


async def test_a_pipelined_request_has_the_same_limits(client: Client) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    async with client.connect() as http_connection:
        http_connection.writer.write(first + b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 101 + b"\r\n")
        assert (await http_connection.answer()).code == 200
        assert (await http_connection.answer()).code == 431


async def test_a_malformed_chunk_is_refused_while_the_body_is_read(http_harness: HttpHarness) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = await raw_answer(http_harness.client, chunked, b"2\r\n{}\r\n", b"no size\r\n")
    assert (answer.code, answer.error["reason"]) == (400, "MALFORMED_REQUEST")
    assert await http_harness.harness.count() == {}


async def test_a_malformed_chunk_after_the_response_began_ends_the_connection_without_a_traceback(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.connect() as http_connection:
        head = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        http_connection.writer.write(head)
        code, _ = await http_connection.head()
        assert code == 200
        http_connection.writer.write(b"no size\r\n")
        with suppress(ConnectionError):
            await http_connection.reader.read()  # until the server ends the connection
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
