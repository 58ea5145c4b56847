"""Server-sent events: each event once and in order, over reconnects and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.integration.http.http_client import Client, ServerEvent
from tests.integration.http.http_harness import HttpHarness

EVENTS = "/v1/namespaces/orders/events"


class EventSource:
    """Reads a stream as a browser's EventSource does."""

    def __init__(self, stream: AsyncIterator[ServerEvent | str], last_id: str = "") -> None:
        self._stream = stream
        self.last_id = last_id
        self.types: list[tuple[str, str]] = []

    async def next(self) -> ServerEvent | str:
        event = await anext(self._stream)
        if isinstance(event, ServerEvent) and event.name == "message":
            self.last_id = event.id
            answer = event.json()
            assert answer["resume_token"] == event.id
            self.types += [(each["worker_instance_key"], each["type"]) for each in answer["events"]]
        return event

    async def until(self, count: int) -> list[tuple[str, str]]:
        while len(self.types) < count:
            await self.next()
        return self.types

    async def ended(self) -> None:
        while True:
            try:
                await self.next()
            except StopAsyncIteration:
                return


@asynccontextmanager
async def watching(client: Client, target: str = EVENTS, last_id: str = "") -> AsyncIterator[EventSource]:
    """Open a stream and read the first answer, which only contains the start position."""
    async with client.connect() as http_connection:
        await http_connection.send("GET", target, {"Last-Event-ID": last_id} if last_id else {})
        code, headers = await http_connection.head()
        assert (code, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        source = EventSource(http_connection.events(), last_id)
        await source.next()
        yield source


def registered(*workers: str) -> list[tuple[str, str]]:
    return [(worker, "WorkerRegistered") for worker in workers]


async def test_events_are_streamed_as_they_happen(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("before")
    async with watching(http_harness.client) as source:
        await http_harness.harness.beat("a")
        assert await source.until(1) == registered("a")
        await http_harness.harness.shut_down("a")
        assert (await source.until(2))[1] == ("a", "WorkerDeactivated")


async def test_a_stream_can_start_with_the_oldest_event_or_select_one_worker(
    http_harness: HttpHarness,
) -> None:
    for worker in ("a", "b"):
        await http_harness.harness.beat(worker)
    async with watching(http_harness.client, f"{EVENTS}?from_beginning=true") as source:
        assert sorted(await source.until(2)) == registered("a", "b")
    async with watching(http_harness.client, f"{EVENTS}?from_beginning=true&worker_instance_key=b") as source:
        assert await source.until(1) == registered("b")
    async with watching(http_harness.client, "/v1/events?from_beginning=true") as source:
        while ("a", "WorkerRegistered") not in source.types:
            await source.next()
        assert ("", "ShardTaken") in source.types


async def test_a_reconnecting_client_gets_every_event_exactly_once(http_harness: HttpHarness) -> None:
    async with watching(http_harness.client) as source:
        await http_harness.harness.beat("a")
        await source.until(1)
    for worker in ("b", "c"):
        await http_harness.harness.beat(worker)
    async with watching(http_harness.client, last_id=source.last_id) as again:
        await http_harness.harness.beat("d")
        assert sorted(await again.until(3)) == registered("b", "c", "d")
    # A token in the query does the same; the header is newer and takes precedence.
    async with watching(http_harness.client, f"{EVENTS}?resume_token={source.last_id}") as again:
        assert sorted(await again.until(3)) == registered("b", "c", "d")
    await http_harness.harness.beat("e")
    target = f"{EVENTS}?from_beginning=true&resume_token={source.last_id}"
    async with watching(http_harness.client, target, last_id=again.last_id) as last:
        assert await last.until(1) == registered("e")


async def test_an_invalid_resume_token_is_refused_before_the_stream_starts(
    http_harness: HttpHarness,
) -> None:
    async with watching(http_harness.client) as source:
        pass
    for headers, target in (
        ({"Last-Event-ID": "nonsense"}, EVENTS),
        ({}, f"{EVENTS}?resume_token=nonsense"),
        ({"Last-Event-ID": source.last_id}, "/v1/events"),
    ):
        answer = await http_harness.client.ask("GET", target, headers)
        assert (answer.code, answer.error["reason"]) == (400, "RESUME_TOKEN_INVALID")


async def test_a_stream_is_refused_if_events_were_deleted_that_it_missed(http_harness: HttpHarness) -> None:
    harness = http_harness.harness
    async with watching(http_harness.client) as source:
        pass
    for session in range(3):
        await harness.beat("a", session_id=str(session))
    harness.clock.jump_wall(31 * 86_400_000)
    await harness.server.maintenance.checkpoint()
    await harness.server.maintenance.apply_retention()
    answer = await http_harness.client.ask("GET", EVENTS, {"Last-Event-ID": source.last_id})
    assert (answer.code, answer.error["reason"]) == (400, "RESUME_TOKEN_INVALID")
    assert "retention has deleted up to 3 events" in answer.error["message"]
    async with watching(http_harness.client) as source:
        await harness.beat("b")
        assert await source.until(1) == registered("b")


async def test_an_idle_stream_sends_comments(http_harness: HttpHarness) -> None:
    async with watching(http_harness.client) as source:
        for _ in range(2):
            reading = asyncio.ensure_future(source.next())
            while not reading.done():
                http_harness.harness.clock.move(15_000)
                await asyncio.sleep(0)
            assert await reading == ":"
        await http_harness.harness.beat("a")
        assert await source.until(1) == registered("a")


async def test_a_stopping_server_ends_its_streams_and_the_next_one_resumes(
    http_harness: HttpHarness,
) -> None:
    async with watching(http_harness.client) as source:
        await http_harness.harness.beat("a")
        await source.until(1)
        closing = asyncio.create_task(http_harness.close())
        await source.ended()
        await closing
    await http_harness.open()
    await http_harness.harness.beat("b")
    async with watching(http_harness.client, last_id=source.last_id) as again:
        await http_harness.harness.beat("c")
        seen = [each for each in await again.until(2) if each[0]]
        assert sorted(seen) == registered("b", "c")


async def test_a_disconnected_client_frees_its_stream(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(streams_max=1)
    async with watching(stopped_harness.client):
        answer = await stopped_harness.client.ask("GET", EVENTS)
        assert (answer.code, answer.error["reason"]) == (503, "TOO_MANY_STREAMS")
        assert answer.headers["retry-after"] == "10"
    while (await _code(stopped_harness.client)) == 503:
        await asyncio.sleep(0)


async def test_streams_of_one_client_leave_some_for_others(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(streams_max=4)
    greedy = Client(stopped_harness.port, source="127.0.0.2")
    async with AsyncExitStack() as streams:
        for _ in range(4):
            http_connection = await streams.enter_async_context(greedy.connect())
            await http_connection.send("GET", EVENTS)
            code, _ = await http_connection.head()
            if code == 503:
                break
        async with watching(stopped_harness.client) as source:
            await stopped_harness.harness.beat("a")
            assert await source.until(1) == registered("a")


async def _code(client: Client) -> int:
    async with client.connect() as http_connection:
        await http_connection.send("GET", EVENTS)
        code, _ = await http_connection.head()
        return code


async def test_a_client_that_does_not_read_blocks_neither_others_nor_the_shutdown(
    http_harness: HttpHarness,
) -> None:
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("GET", f"{EVENTS}?from_beginning=true")
        await http_connection.head()
        async with watching(http_harness.client) as other:
            number = 0
            while not has_blocked_client(http_harness):
                number += 1
                assert number < 5_000
                await http_harness.harness.beat(
                    f"w-{number}", labels={f"label-{n}": "x" * 200 for n in range(30)}
                )
            assert len(await other.until(number)) == number
        await http_harness.close()


def has_blocked_client(http_harness: HttpHarness) -> bool:
    """Return whether a client does not read and all buffers are full."""
    connections: Any = http_harness.http_server._uvicorn.server_state.connections
    return any(connection.flow.write_paused for connection in connections)


async def test_a_stream_ends_at_its_timeout(http_harness: HttpHarness) -> None:
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("GET", EVENTS, {"X-Timeout": "200ms"})
        await http_connection.head()
        await EventSource(http_connection.events()).ended()


async def test_an_unknown_parameter_is_refused_before_the_stream_starts(client: Client) -> None:
    code, reason, _ = await client.refused("GET", f"{EVENTS}?since=yesterday")
    assert (code, reason) == (400, "UNKNOWN_PARAMETER")
