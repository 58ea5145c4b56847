"""WatchEvents: everything from a place on, once and in order, over reconnects and restarts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import grpc
import pytest

from liveness.v1 import event_pb2, service_pb2
from tests.server.site import Site, heartbeat, refusal, unpack
from tests.shard.engine import activity


class Watcher:
    """A stream, and what came out of it."""

    def __init__(self, site: Site, **selection: Any) -> None:
        self.site = site
        self.selection = selection
        self.events: list[event_pb2.Event] = []
        self.token = ""
        self.stream: Any = None

    async def open(self, **fields: Any) -> Watcher:
        request = service_pb2.WatchEventsRequest(**{**self.selection, "resume_token": self.token, **fields})
        self.stream = self.site.liveness.WatchEvents(request)
        self.token = (await self.stream.read()).resume_token
        return self

    async def until(self, count: int) -> list[event_pb2.Event]:
        """Read until so many events came in all."""
        while len(self.events) < count:
            answer = await asyncio.wait_for(self.stream.read(), 10)
            self.events += answer.events
            self.token = answer.resume_token
        return self.events

    def names(self) -> list[tuple[str, str]]:
        return [(event.worker_instance_key, event.type) for event in self.events]


def in_order(events: list[event_pb2.Event]) -> bool:
    places = defaultdict(list)
    for event in events:
        places[event.shard_id].append(event.sequence)
    return all(seqs == sorted(set(seqs)) for seqs in places.values())


async def churn(site: Site, *workers: str, namespace: str = "orders") -> None:
    for worker in workers:
        await site.beat(worker, namespace=namespace, bound_activities=[activity(worker)])
        await site.beat(worker, namespace=namespace)
        await site.shut_down(worker, namespace)
    await site.advance(1)


async def test_a_watcher_of_all_sees_every_event_from_its_beginning_on(site: Site) -> None:
    await site.beat("earlier")
    watcher = await Watcher(site).open()
    await churn(site, "a", "b")
    await watcher.until(2 * 2 + 2 * 3)  # registered, deactivated; cancel requested, released, made available
    assert in_order(watcher.events)
    assert ("earlier", "WorkerRegistered") not in watcher.names()
    kinds = sorted(event.type for event in watcher.events)
    assert kinds == sorted(
        [
            "WorkerRegistered",
            "WorkerDeactivated",
            "ActivityCancelRequested",
            "ActivityReleased",
            "ActivityMadeAvailable",
        ]
        * 2
    )


async def test_a_watcher_from_the_beginning_sees_what_was_before(site: Site) -> None:
    await churn(site, "a")
    watcher = await Watcher(site, namespace="orders").open(from_beginning=True)
    events = await watcher.until(5)
    assert [event.type for event in events if event.worker_instance_key] == [
        "WorkerRegistered",
        "WorkerDeactivated",
    ]


async def test_a_watcher_of_a_namespace_sees_nothing_of_another(site: Site) -> None:
    watcher = await Watcher(site, namespace="orders").open()
    await churn(site, "a", namespace="billing")
    await churn(site, "b")
    await watcher.until(5)
    assert {event.namespace for event in watcher.events} == {"orders"}
    assert {event.worker_instance_key for event in watcher.events} == {"b", ""}


async def test_a_watcher_of_a_worker_sees_that_worker_alone(site: Site) -> None:
    watcher = await Watcher(site, namespace="orders", worker_instance_key="b").open()
    await churn(site, "a", "b", "c")
    await watcher.until(2)
    assert watcher.names() == [("b", "WorkerRegistered"), ("b", "WorkerDeactivated")]


async def test_settings_are_events_too(site: Site) -> None:
    watcher = await Watcher(site).open()
    await site.configure(max_workers=5)
    [event] = await watcher.until(1)
    assert (event.type, event.namespace) == ("ConfigChanged", "orders")


@pytest.mark.parametrize(
    "selection", [{}, {"namespace": "orders"}, {"namespace": "orders", "worker_instance_key": "w1"}]
)
async def test_resuming_repeats_nothing_and_skips_nothing_over_reconnects_and_restarts(
    site: Site, selection: dict[str, str]
) -> None:
    whole = await Watcher(site, **selection).open()
    begin = whole.token
    watcher = Watcher(site, **selection)
    watcher.token = begin
    for turn in range(6):
        await churn(site, f"w{turn}", "w1", f"x{turn}")
        await watcher.open()
        if turn % 2:
            await watcher.until(len(watcher.events) + 1)
        watcher.stream.cancel()
        if turn in (2, 4):
            await site.restart()
            await site.server.maintenance.checkpoint()
    expected = Watcher(site, **selection)
    expected.token = begin
    await expected.open()
    await site.beat("w1", session_id="the end")
    while ("w1", "SessionReplaced") not in expected.names() and "WorkerResurrected" not in {
        event.type for event in expected.events[-1:]
    }:
        await expected.until(len(expected.events) + 1)
    await watcher.open()
    await watcher.until(len(expected.events))
    place = lambda event: (event.shard_id, event.sequence)  # noqa: E731
    assert sorted(map(place, watcher.events)) == sorted(map(place, expected.events))
    assert in_order(watcher.events)


async def test_each_answer_resumes_right_after_its_events(site: Site) -> None:
    watcher = await Watcher(site, namespace="orders", worker_instance_key="w").open()
    for session in range(10):
        await site.beat(session_id=f"s{session}")
    first = (await watcher.until(1)).copy()
    resumed = Watcher(site, **watcher.selection)
    resumed.token = watcher.token
    await resumed.open()
    await resumed.until(10 - len(first))
    sequences = [event.sequence for event in first + resumed.events]
    assert sequences == [event.sequence for event in (await site.history()).events]


async def test_more_events_than_fit_one_answer_come_in_several(site: Site) -> None:
    watcher = await Watcher(site, namespace="orders", worker_instance_key="w").open()
    watcher.stream.cancel()
    for turn in range(3):
        await site.batch(*(heartbeat(session_id=f"s{turn}-{place}") for place in range(400)))
    await watcher.open()
    assert len(await watcher.until(1_200)) == 1_200
    assert in_order(watcher.events)


async def test_a_resume_token_serves_its_own_selection_only(site: Site) -> None:
    token = (await Watcher(site, namespace="orders").open()).token
    others: list[dict[str, Any]] = [
        {},
        {"namespace": "billing"},
        {"namespace": "orders", "worker_instance_key": "w"},
    ]
    for selection in others:
        stream = site.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=token, **selection))
        refused = await refusal(stream.read())
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "RESUME_TOKEN_INVALID")


async def test_a_token_from_another_history_is_refused(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = await Site(f"sqlite:///{tmp_path_factory.mktemp('other')}/liveness.db").start()
    try:
        await churn(other, "a", "b", "c", "d", "e", "f", "g", "h")
        token = (await Watcher(other).open()).token
    finally:
        await other.stop()
    stream = site.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=token))
    assert (await refusal(stream.read())).reason == "RESUME_TOKEN_INVALID"


async def test_streams_end_with_unavailable_when_the_server_stops(site: Site) -> None:
    watcher = await Watcher(site).open()
    stopped = asyncio.create_task(site.server.stop())
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await watcher.stream.read()
    refused = unpack(ended.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    await stopped
    site._running = False
    await site.channel.close()


async def test_a_slow_watcher_costs_others_nothing_and_misses_nothing(site: Site) -> None:
    slow = await Watcher(site, namespace="orders").open()
    for _ in range(3):
        await churn(site, *(f"w{number}" for number in range(10)))
    await slow.until(3 * 10 * 5)
    assert in_order(slow.events)
