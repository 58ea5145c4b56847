"""Connections that keep the server waiting are closed, and no client takes all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.integration.http.http_client import JSON, Client, Connection
from tests.integration.http.http_harness import HttpHarness
from tests.integration.http.test_event_streams import has_blocked_client, registered, watching

HALF = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
HEARTBEAT = "/v1/namespaces/orders/workers/w/heartbeat"


async def pass_time(http_harness: HttpHarness, ms: int) -> None:
    """Move the clock in steps, and let the server act on each."""
    for _ in range(ms // 1_000):
        http_harness.harness.clock.move(1_000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (await http_harness.client.ask("GET", "/healthz")).code == 200


async def idle(http_connection: Connection) -> None:
    pass


async def half_head(http_connection: Connection) -> None:
    http_connection.writer.write(HALF)


async def half_second_head(http_connection: Connection) -> None:
    await http_connection.send("GET", "/healthz")
    await http_connection.answer()
    http_connection.writer.write(HALF)


async def body_that_nobody_reads(http_connection: Connection) -> None:
    await http_connection.send("GET", "/healthz", {"Content-Length": "1000"}, b"x")
    await http_connection.answer()


async def refused_head(http_connection: Connection) -> None:
    http_connection.writer.write(b"nonsense\r\n\r\n")
    assert (await http_connection.answer()).code == 400


@pytest.mark.parametrize(
    "begin",
    [idle, half_head, half_second_head, body_that_nobody_reads, refused_head],
    ids=lambda each: each.__name__,
)
async def test_a_connection_without_a_request_is_closed_after_ten_seconds(
    http_harness: HttpHarness, begin: Callable[[Connection], Awaitable[None]]
) -> None:
    async with http_harness.client.connect() as http_connection:
        await begin(http_connection)
        await pass_time(http_harness, 1_000)  # the server has seen everything
        reading = asyncio.ensure_future(http_connection.reader.read())
        await pass_time(http_harness, 8_000)
        if begin is not refused_head:  # where the answer ended with EOF
            assert not reading.done()
        http_connection.writer.write(b"x")  # dribbling does not help
        await pass_time(http_harness, 3_000)
        try:
            assert await reading == b""
        except ConnectionError:
            pass
        while http_harness.http_server._connections.count:
            await asyncio.sleep(0)


async def test_a_request_that_waits_for_its_answer_keeps_its_connection(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("w", task_queue="q")
    async with http_harness.client.connect() as http_connection:
        poll = b'{"worker_instance_key": "w", "wait": "60s"}'
        await http_connection.send("POST", "/v1/namespaces/orders/activities/poll", JSON, poll)
        await pass_time(http_harness, 15_000)
        activity = {"id": {"workflow_id": "a", "run_id": "1", "activity_id": "b"}, "task_queue": "q"}
        await http_harness.client.post("/v1/namespaces/orders/activities", activity)
        assert (await http_connection.answer()).code == 200


async def test_a_client_that_reads_nothing_for_a_minute_is_disconnected(http_harness: HttpHarness) -> None:
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("GET", "/v1/namespaces/orders/events?from_beginning=true")
        await http_connection.head()
        number = 0
        while not has_blocked_client(http_harness):
            number += 1
            assert number < 5_000
            await http_harness.harness.beat(
                f"w-{number}", labels={f"label-{n}": "x" * 200 for n in range(30)}
            )
        await pass_time(http_harness, 50_000)
        assert has_blocked_client(http_harness)
        await pass_time(http_harness, 11_000)
        while http_harness.http_server._connections.count:
            await asyncio.sleep(0)


async def test_half_requests_of_a_client_are_closed_oldest_first(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(connections=8)
    async with AsyncExitStack() as stack:
        half = []
        for _ in range(20):
            http_connection = await stack.enter_async_context(stopped_harness.client.connect())
            http_connection.writer.write(HALF)
            half.append(http_connection)
            for client in (stopped_harness.client, Client(stopped_harness.port, source="127.0.0.2")):
                assert (await client.ask("GET", "/healthz")).code == 200
                assert (await client.ask("GET", "/")).code == 200
        for http_connection in half[:16]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await http_connection.head()
        half[-1].writer.write(b"\r\n")
        assert (await half[-1].answer()).code == 200


async def test_a_client_with_requests_on_all_of_its_connections_gets_no_more(
    stopped_harness: HttpHarness,
) -> None:
    await stopped_harness.open(connections=4)
    other = Client(stopped_harness.port, source="127.0.0.2")
    async with watching(stopped_harness.client) as one, watching(stopped_harness.client) as two:
        for _ in range(3):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await stopped_harness.client.ask("GET", "/healthz")
            assert (await other.ask("GET", "/healthz")).code == 200
        await stopped_harness.harness.beat("a")
        assert await one.until(1) == await two.until(1) == registered("a")
    while stopped_harness.http_server._connections.count:
        await asyncio.sleep(0)
    assert (await stopped_harness.client.ask("GET", "/healthz")).code == 200


async def test_half_requests_of_many_clients_make_room_for_a_new_client(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(connections=6)
    async with AsyncExitStack() as stack:
        for number in range(30):
            crowd = Client(stopped_harness.port, source=f"127.0.1.{1 + number % 10}")
            http_connection = await stack.enter_async_context(crowd.connect())
            http_connection.writer.write(HALF)
        newcomer = Client(stopped_harness.port, source="127.0.0.2")
        for _ in range(5):
            assert (await newcomer.ask("GET", "/healthz")).code == 200
