"""Events as they happen, over HTTP: each once, in order, over reconnects and restarts, and a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.http.client import Client, ServerEvent
from tests.http.house import House

EVENTS = "/v1/namespaces/orders/events"


class Source:
    """What a browser's EventSource does with a stream."""

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
async def watching(client: Client, target: str = EVENTS, last_id: str = "") -> AsyncIterator[Source]:
    """Open, and past the first answer, which only says where the stream begins."""
    async with client.conversation() as talk:
        await talk.send("GET", target, {"Last-Event-ID": last_id} if last_id else {})
        code, headers = await talk.head()
        assert (code, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        source = Source(talk.events(), last_id)
        await source.next()
        yield source


def registered(*workers: str) -> list[tuple[str, str]]:
    return [(worker, "WorkerRegistered") for worker in workers]


async def test_events_come_as_they_happen(house: House) -> None:
    await house.site.beat("before")
    async with watching(house.client) as source:
        await house.site.beat("a")
        assert await source.until(1) == registered("a")
        await house.site.shut_down("a")
        assert (await source.until(2))[1] == ("a", "WorkerDeactivated")


async def test_a_stream_may_begin_with_the_oldest_event_or_be_about_one_worker(house: House) -> None:
    for worker in ("a", "b"):
        await house.site.beat(worker)
    async with watching(house.client, f"{EVENTS}?from_beginning=true") as source:
        assert sorted(await source.until(2)) == registered("a", "b")
    async with watching(house.client, f"{EVENTS}?from_beginning=true&worker_instance_key=b") as source:
        assert await source.until(1) == registered("b")
    async with watching(house.client, "/v1/events?from_beginning=true") as source:
        while ("a", "WorkerRegistered") not in source.types:
            await source.next()
        assert ("", "ShardTaken") in source.types


async def test_who_comes_back_misses_nothing_and_sees_nothing_twice(house: House) -> None:
    async with watching(house.client) as source:
        await house.site.beat("a")
        await source.until(1)
    for worker in ("b", "c"):
        await house.site.beat(worker)
    async with watching(house.client, last_id=source.last_id) as again:
        await house.site.beat("d")
        assert sorted(await again.until(3)) == registered("b", "c", "d")
    # A token in the query does the same; the header, which is newer, goes before it.
    async with watching(house.client, f"{EVENTS}?resume_token={source.last_id}") as again:
        assert sorted(await again.until(3)) == registered("b", "c", "d")
    await house.site.beat("e")
    target = f"{EVENTS}?from_beginning=true&resume_token={source.last_id}"
    async with watching(house.client, target, last_id=again.last_id) as last:
        assert await last.until(1) == registered("e")


async def test_a_token_that_does_not_belong_here_is_refused_before_the_stream_begins(house: House) -> None:
    async with watching(house.client) as source:
        pass
    for headers, target in (
        ({"Last-Event-ID": "nonsense"}, EVENTS),
        ({}, f"{EVENTS}?resume_token=nonsense"),
        ({"Last-Event-ID": source.last_id}, "/v1/events"),
    ):
        answer = await house.client.ask("GET", target, headers)
        assert (answer.code, answer.error["reason"]) == (400, "RESUME_TOKEN_INVALID")


async def test_silence_is_filled_with_comments(house: House) -> None:
    async with watching(house.client) as source:
        for _ in range(2):
            reading = asyncio.ensure_future(source.next())
            while not reading.done():
                house.site.clock.move(15_000)
                await asyncio.sleep(0)
            assert await reading == ":"
        await house.site.beat("a")
        assert await source.until(1) == registered("a")


async def test_a_server_that_stops_ends_its_streams_and_the_next_one_goes_on(house: House) -> None:
    async with watching(house.client) as source:
        await house.site.beat("a")
        await source.until(1)
        closing = asyncio.create_task(house.close())
        await source.ended()
        await closing
    await house.open()
    await house.site.beat("b")
    async with watching(house.client, last_id=source.last_id) as again:
        await house.site.beat("c")
        seen = [each for each in await again.until(2) if each[0]]
        assert sorted(seen) == registered("b", "c")


async def test_a_client_that_leaves_frees_its_place(plot: House) -> None:
    await plot.open(streams_max=1)
    async with watching(plot.client):
        answer = await plot.client.ask("GET", EVENTS)
        assert (answer.code, answer.error["reason"]) == (503, "TOO_MANY_STREAMS")
        assert answer.headers["retry-after"] == "10"
    while (await _code(plot.client)) == 503:
        await asyncio.sleep(0)


async def _code(client: Client) -> int:
    async with client.conversation() as talk:
        await talk.send("GET", EVENTS)
        code, _ = await talk.head()
        return code


async def test_a_client_that_does_not_read_holds_up_nobody(house: House) -> None:
    """Neither others, nor the end of the server."""
    async with house.client.conversation() as talk:
        await talk.send("GET", f"{EVENTS}?from_beginning=true")
        await talk.head()
        async with watching(house.client) as other:
            number = 0
            while not is_stuck(house):
                number += 1
                assert number < 5_000
                await house.site.beat(f"w-{number}", labels={f"label-{n}": "x" * 200 for n in range(30)})
            assert len(await other.until(number)) == number
        await house.close()


def is_stuck(house: House) -> bool:
    """Whether somebody does not read, and all that lies in between is full."""
    connections: Any = house.face._http.server_state.connections
    return any(connection.flow.write_paused for connection in connections)


async def test_a_stream_ends_when_the_time_that_was_asked_for_is_over(house: House) -> None:
    async with house.client.conversation() as talk:
        await talk.send("GET", EVENTS, {"X-Timeout": "200ms"})
        await talk.head()
        await Source(talk.events()).ended()


async def test_an_unknown_parameter_is_refused_before_the_stream_begins(client: Client) -> None:
    code, reason, _ = await client.refused("GET", f"{EVENTS}?since=yesterday")
    assert (code, reason) == (400, "UNKNOWN_PARAMETER")
