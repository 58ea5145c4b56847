"""Limits on bodies, headers and work on the event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from liveness.http.body_reader import BodyReader
from tests.integration.http.http_client import JSON, Client
from tests.integration.http.http_harness import HttpHarness

HEARTBEAT = "/v1/namespaces/orders/workers/w/heartbeat"
MIB = 1024 * 1024


async def test_a_too_large_body_is_refused_before_it_is_sent(client: Client) -> None:
    async with client.connect() as http_connection:
        await http_connection.send("POST", HEARTBEAT, {**JSON, "Content-Length": str(4 * MIB + 1)})
        answer = await http_connection.answer()
    assert (answer.code, answer.error["reason"]) == (413, "BODY_TOO_LARGE")
    assert "4 MiB" in answer.error["message"]


async def test_a_call_without_payload_may_have_only_a_small_body(client: Client) -> None:
    async with client.connect() as http_connection:
        await http_connection.send(
            "POST", "/v1/namespaces/orders/workers/w/expire", {**JSON, "Content-Length": str(64 * 1024 + 1)}
        )
        answer = await http_connection.answer()
    assert (answer.code, answer.error["reason"]) == (413, "BODY_TOO_LARGE")
    assert "64 KiB" in answer.error["message"]


async def test_a_chunked_body_is_refused_at_the_size_limit(client: Client) -> None:
    head = "POST /v1/namespaces/orders/workers/w/expire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with client.connect() as http_connection:
        http_connection.writer.write(
            head.encode() + b"Transfer-Encoding: chunked\r\n\r\n10001\r\n" + b" " * 0x10001 + b"\r\n"
        )
        answer = await http_connection.answer()
    assert (answer.code, answer.error["reason"]) == (413, "BODY_TOO_LARGE")


async def test_the_total_size_of_all_bodies_is_limited(
    stopped_harness: HttpHarness,
) -> None:
    await stopped_harness.open(body_reader=BodyReader(total_bytes_max=10_000))
    body = json.dumps({"last_error": "x" * 4_000}).encode()
    async with stopped_harness.client.connect() as slow:
        await slow.send("POST", HEARTBEAT, {**JSON, "Content-Length": str(len(body))}, body[:-1])
        refused = await stopped_harness.client.ask("POST", HEARTBEAT, JSON, body)
        while refused.code != 503:  # until the slow request has arrived
            refused = await stopped_harness.client.ask("POST", HEARTBEAT, JSON, body)
        assert (refused.error["reason"], refused.headers["retry-after"]) == ("TOO_MANY_BODIES", "1")
        slow.writer.write(body[-1:])
        assert (await slow.answer()).code != 503
    assert (await stopped_harness.client.ask("POST", HEARTBEAT, JSON, body)).code != 503


async def test_a_body_that_never_ends_times_out_and_frees_its_bytes(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(body_reader=BodyReader(total_bytes_max=10_000, start_timeout_s=0.2))
    body = json.dumps({"last_error": "x" * 4_000}).encode()
    async with stopped_harness.client.connect() as slow:
        await slow.send("POST", HEARTBEAT, {**JSON, "Content-Length": str(len(body))}, body[:-1])
        answer = await slow.answer()
        assert (answer.code, answer.error["reason"]) == (408, "BODY_TOO_SLOW")
        assert (await stopped_harness.client.ask("POST", HEARTBEAT, JSON, body)).code == 200


async def test_slow_bodies_of_one_client_leave_room_for_those_of_others(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(body_reader=BodyReader(total_bytes_max=10_000))
    slow_client = Client(stopped_harness.port, source="127.0.0.2")
    body = json.dumps({"last_error": "x" * 4_800}).encode()
    async with slow_client.connect() as slow, slow_client.connect() as slower:
        for http_connection in (slow, slower):
            await http_connection.send(
                "POST", HEARTBEAT, {**JSON, "Content-Length": str(len(body))}, body[:-1]
            )
        for _ in range(3):  # so that the slow ones have arrived
            small = json.dumps({"last_error": "x" * 2_500}).encode()
            assert (await stopped_harness.client.ask("POST", HEARTBEAT, JSON, small)).code == 200
        refused = await asyncio.wait_for(slower.answer(), 10)
        assert (refused.code, refused.error["reason"]) == (503, "TOO_MANY_BODIES")


async def test_connections_use_tcp_keepalive(http_harness: HttpHarness) -> None:
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("GET", "/healthz")
        await http_connection.answer()
        [connection] = http_harness.http_server._uvicorn.server_state.connections
        accepted: socket.socket = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_a_connection_serves_several_requests(client: Client) -> None:
    async with client.connect() as http_connection:
        for _ in range(3):
            await http_connection.send("GET", "/v1/server")
            assert (await http_connection.answer()).code == 200
            await http_connection.send("POST", HEARTBEAT, JSON, b"{")
            assert (await http_connection.answer()).code == 400
            await http_connection.send("POST", HEARTBEAT, JSON, b"{}")
            assert (await http_connection.answer()).code == 200


async def test_large_messages_are_converted_outside_the_event_loop(http_harness: HttpHarness) -> None:
    """Heartbeats do not wait for the conversion of a long list to JSON."""
    threads: list[str] = []
    thread: Any = http_harness.http_server._app._executor
    submit = thread.submit

    def recorded_submit(*work: Any) -> Any:
        threads.append("used")
        return submit(*work)

    thread.submit = recorded_submit
    beats = [{"worker_instance_key": f"w-{n}", "last_error": "x" * 100} for n in range(1_000)]
    await http_harness.client.post("/v1/namespaces/orders/heartbeats", {"heartbeats": beats})
    assert len(threads) == 2, "the request and the answer"
    listed = await http_harness.client.get("/v1/namespaces/orders/workers?page_size=1000")
    assert (len(listed["workers"]), len(threads)) == (1_000, 3)
    await http_harness.client.get("/v1/server")
    assert len(threads) == 3


async def test_a_large_resume_token_fits_into_a_header(http_harness: HttpHarness) -> None:
    answer = await http_harness.client.ask("GET", "/v1/events", {"Last-Event-ID": "x" * 100_000})
    assert (answer.code, answer.error["reason"]) == (400, "RESUME_TOKEN_INVALID")


async def test_bytes_that_are_not_http_end_only_their_connection(client: Client) -> None:
    for junk in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\r\n" * 10,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        async with client.connect() as http_connection:
            http_connection.writer.write(junk)
            http_connection.writer.write_eof()
            await http_connection.reader.read()
    assert (await client.ask("GET", "/healthz")).code == 200


async def test_a_client_that_disconnects_within_its_body_changes_nothing(
    http_harness: HttpHarness,
) -> None:
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("POST", HEARTBEAT, {**JSON, "Content-Length": "100"}, b"{}")
    await asyncio.gather(*(http_harness.client.ask("GET", "/v1/server") for _ in range(5)))
    assert await http_harness.harness.count() == {}
