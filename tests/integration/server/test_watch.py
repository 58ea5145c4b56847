"""WatchEvents: every event after a position, once and in order, over reconnects and restarts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import grpc
import pytest

from liveness.v1 import event_pb2, service_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import ServerHarness, heartbeat, refusal, unpack


class Watcher:
    """A watch stream and the events it delivered."""

    def __init__(self, harness: ServerHarness, **selection: Any) -> None:
        self.harness = harness
        self.selection = selection
        self.events: list[event_pb2.Event] = []
        self.token = ""
        self.stream: Any = None

    async def open(self, **fields: Any) -> Watcher:
        request = service_pb2.WatchEventsRequest(**{**self.selection, "resume_token": self.token, **fields})
        self.stream = self.harness.liveness.WatchEvents(request)
        self.token = (await self.stream.read()).resume_token
        return self

    async def until(self, count: int) -> list[event_pb2.Event]:
        """Read until `count` events have arrived in total."""
        while len(self.events) < count:
            answer = await asyncio.wait_for(self.stream.read(), 10)
            self.events += answer.events
            self.token = answer.resume_token
        return self.events

    def names(self) -> list[tuple[str, str]]:
        return [(event.worker_instance_key, event.type) for event in self.events]


def in_order(events: list[event_pb2.Event]) -> bool:
    sequences_by_shard = defaultdict(list)
    for event in events:
        sequences_by_shard[event.shard_id].append(event.sequence)
    return all(seqs == sorted(set(seqs)) for seqs in sequences_by_shard.values())


async def register_and_expire(harness: ServerHarness, *workers: str, namespace: str = "orders") -> None:
    for worker in workers:
        await harness.beat(worker, namespace=namespace, bound_activities=[activity(worker)])
        await harness.beat(worker, namespace=namespace)
        await harness.shut_down(worker, namespace)
    await harness.advance(1)


async def test_a_watch_of_everything_gets_all_events_after_its_start(harness: ServerHarness) -> None:
    await harness.beat("earlier")
    watcher = await Watcher(harness).open()
    await register_and_expire(harness, "a", "b")
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


async def test_a_watch_from_the_beginning_gets_earlier_events(harness: ServerHarness) -> None:
    await register_and_expire(harness, "a")
    watcher = await Watcher(harness, namespace="orders").open(from_beginning=True)
    events = await watcher.until(5)
    assert [event.type for event in events if event.worker_instance_key] == [
        "WorkerRegistered",
        "WorkerDeactivated",
    ]


async def test_a_watch_of_a_namespace_gets_no_events_of_another(harness: ServerHarness) -> None:
    watcher = await Watcher(harness, namespace="orders").open()
    await register_and_expire(harness, "a", namespace="billing")
    await register_and_expire(harness, "b")
    await watcher.until(5)
    assert {event.namespace for event in watcher.events} == {"orders"}
    assert {event.worker_instance_key for event in watcher.events} == {"b", ""}


async def test_a_watch_of_a_worker_gets_only_its_events(harness: ServerHarness) -> None:
    watcher = await Watcher(harness, namespace="orders", worker_instance_key="b").open()
    await register_and_expire(harness, "a", "b", "c")
    await watcher.until(2)
    assert watcher.names() == [("b", "WorkerRegistered"), ("b", "WorkerDeactivated")]


async def test_changed_settings_are_watched_as_events(harness: ServerHarness) -> None:
    watcher = await Watcher(harness).open()
    await harness.configure(max_workers=5)
    [event] = await watcher.until(1)
    assert (event.type, event.namespace) == ("ConfigChanged", "orders")


@pytest.mark.parametrize(
    "selection", [{}, {"namespace": "orders"}, {"namespace": "orders", "worker_instance_key": "w1"}]
)
async def test_resuming_repeats_nothing_and_skips_nothing_over_reconnects_and_restarts(
    harness: ServerHarness, selection: dict[str, str]
) -> None:
    whole = await Watcher(harness, **selection).open()
    begin = whole.token
    watcher = Watcher(harness, **selection)
    watcher.token = begin
    for turn in range(6):
        await register_and_expire(harness, f"w{turn}", "w1", f"x{turn}")
        await watcher.open()
        if turn % 2:
            await watcher.until(len(watcher.events) + 1)
        watcher.stream.cancel()
        if turn in (2, 4):
            await harness.restart()
            await harness.server.maintenance.checkpoint()
    expected = Watcher(harness, **selection)
    expected.token = begin
    await expected.open()
    await harness.beat("w1", session_id="the end")
    while ("w1", "SessionReplaced") not in expected.names() and "WorkerResurrected" not in {
        event.type for event in expected.events[-1:]
    }:
        await expected.until(len(expected.events) + 1)
    await watcher.open()
    await watcher.until(len(expected.events))
    position = lambda event: (event.shard_id, event.sequence)  # noqa: E731
    assert sorted(map(position, watcher.events)) == sorted(map(position, expected.events))
    assert in_order(watcher.events)


async def test_the_token_of_each_answer_resumes_right_after_its_events(harness: ServerHarness) -> None:
    watcher = await Watcher(harness, namespace="orders", worker_instance_key="w").open()
    for session in range(10):
        await harness.beat(session_id=f"s{session}")
    first = (await watcher.until(1)).copy()
    resumed = Watcher(harness, **watcher.selection)
    resumed.token = watcher.token
    await resumed.open()
    await resumed.until(10 - len(first))
    sequences = [event.sequence for event in first + resumed.events]
    assert sequences == [event.sequence for event in (await harness.history()).events]


async def test_events_that_exceed_one_answer_are_split(harness: ServerHarness) -> None:
    harness.lift_rate_limits()
    watcher = await Watcher(harness, namespace="orders", worker_instance_key="w").open()
    watcher.stream.cancel()
    for turn in range(3):
        await harness.batch(*(heartbeat(session_id=f"s{turn}-{position}") for position in range(400)))
    await watcher.open()
    assert len(await watcher.until(1_200)) == 1_200
    assert in_order(watcher.events)


async def test_a_resume_token_is_valid_only_for_its_selection(harness: ServerHarness) -> None:
    token = (await Watcher(harness, namespace="orders").open()).token
    others: list[dict[str, Any]] = [
        {},
        {"namespace": "billing"},
        {"namespace": "orders", "worker_instance_key": "w"},
    ]
    for selection in others:
        stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=token, **selection))
        refused = await refusal(stream.read())
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "RESUME_TOKEN_INVALID")


async def test_a_resume_token_of_another_store_is_refused(
    harness: ServerHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = await ServerHarness(f"sqlite:///{tmp_path_factory.mktemp('other')}/liveness.db").start()
    try:
        await register_and_expire(other, "a", "b", "c", "d", "e", "f", "g", "h")
        token = (await Watcher(other).open()).token
    finally:
        await other.stop()
    stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=token))
    assert (await refusal(stream.read())).reason == "RESUME_TOKEN_INVALID"


async def test_watches_end_with_unavailable_when_the_server_stops(harness: ServerHarness) -> None:
    watcher = await Watcher(harness).open()
    stopped = asyncio.create_task(harness.server.stop())
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await watcher.stream.read()
    refused = unpack(ended.value)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    await stopped
    harness._running = False
    await harness.channel.close()


async def test_a_slow_watcher_does_not_block_the_server_and_misses_nothing(harness: ServerHarness) -> None:
    slow = await Watcher(harness, namespace="orders").open()
    for _ in range(3):
        await register_and_expire(harness, *(f"w{number}" for number in range(10)))
    await slow.until(3 * 10 * 5)
    assert in_order(slow.events)
