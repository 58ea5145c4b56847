"""Events are published to JetStream in log order and without gaps, through restarts, outages and take-overs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from liveness.clock import ManualClock, SystemClock
from liveness.integrations.relay.broker import Broker, BrokerConfig
from liveness.integrations.relay.event_relay import EventRelay
from liveness.integrations.relay.subjects import NO_NAMESPACE, event_subject
from liveness.server.wire import event_json
from liveness.store.errors import ShardsLost
from liveness.v1 import service_pb2
from tests.databases import StoreDatabase
from tests.integration.engine.engine import Engine
from tests.integration.store.faulty_store import FaultyStore
from tests.system.integrations.relay.nats_servers import (
    NatsServer,
    body,
    client_of,
    id_of,
    messages,
    one_server,
)
from tests.system.integrations.relay.relay_server import (
    NAMESPACE,
    lose,
    relay_server,
    status,
    until,
    until_done,
)
from tests.system.server.conftest import MakeServer
from tests.system.server.server_process import ServerProcess

EVENTS = "liveness.events.>"


async def wait_caught_up(server: ServerProcess) -> None:
    async def acknowledged() -> bool:
        answer = await status(server)
        return all(
            shard.backlog == 0 and shard.acknowledged_sequence >= shard.last_sequence
            for shard in answer.shards
        )

    await until(acknowledged, "all events acknowledged")


async def watched(server: ServerProcess) -> dict[int, list[dict[str, Any]]]:
    """Return every event of the log as the feed gives it, by shard."""
    from google.protobuf.json_format import MessageToDict

    total = {shard.shard_id: shard.last_sequence for shard in (await status(server)).shards}
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    call = server.liveness.WatchEvents(service_pb2.WatchEventsRequest(from_beginning=True), timeout=30)
    async for answer in call:
        for event in answer.events:
            found[event.shard_id].append(
                MessageToDict(
                    event, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
            )
        if all(found[id] and int(found[id][-1]["sequence"]) >= seq for id, seq in total.items()):
            call.cancel()
            break
    return found


def by_shard(found: list[Any]) -> dict[int, list[dict[str, Any]]]:
    grouped: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for message in found:
        event = body(message)
        assert message.subject == event_subject(event["namespace"] or None, event["shard_id"])
        grouped[event["shard_id"]].append(event)
    return grouped


async def test_all_events_are_published_in_feed_order(make_server: MakeServer, tmp_path: Path) -> None:
    """Through a restart of the server and one of the broker."""
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker], "--relay-events")
        await server.start()
        await lose(server, "w", 100)
        await until_done(server, 100)
        await server.kill()
        await server.start()
        await wait_caught_up(server)
        await broker.stop()
        await lose(server, "v", 100)
        await broker.start()
        await until_done(server, 200)
        await wait_caught_up(server)
        found = await messages([broker], EVENTS)
        assert len(found) == len({id_of(message) for message in found})
        published, log = by_shard(found), await watched(server)
        assert published.keys() == log.keys()
        for shard_id, events in log.items():
            # The relay started at the end of the log as it was when the server first started.
            assert events[0]["type"] == "ShardTaken"
            assert published[shard_id] == events[1:]
        assert any(NO_NAMESPACE in message.subject for message in found), "the second start"


async def test_a_stream_that_accepts_only_some_events_gets_the_others_later(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker, client_of([broker]) as client:
        streams = client.jetstream()
        config = StreamConfig(
            name="LIVENESS",
            subjects=["liveness.>"],
            max_msgs=7,
            discard=DiscardPolicy.NEW,
            duplicate_window=60,
        )
        await streams.add_stream(config)
        server = relay_server(make_server, tmp_path, [broker], "--relay-events", "--relay-queues", "other/*")
        await server.start()
        await lose(server, "w", 50)
        await until_done(server, 50)

        async def full() -> bool:
            answer = await status(server)
            return "maximum messages" in answer.connections[0].last_error

        await until(full, "the stream is full")
        assert len(await messages([broker], EVENTS)) == 7
        assert sum(shard.backlog for shard in (await status(server)).shards) > 0
        await streams.update_stream(config.evolve(max_msgs=100_000))
        await wait_caught_up(server)
        found = await messages([broker], EVENTS)
        assert len(found) == len({id_of(message) for message in found})
        published, log = by_shard(found), await watched(server)
        for shard_id, events in log.items():
            assert sorted(published[shard_id], key=lambda event: int(event["sequence"])) == events[1:]


async def test_no_event_is_published_by_default(make_server: MakeServer, tmp_path: Path) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        await lose(server, "w", 1)
        await until_done(server, 1)
        assert await messages([broker], EVENTS) == []
        assert {shard.last_sequence for shard in (await status(server)).shards} == {0}


# -- in this process, on both databases


class RelayEngine:
    """An engine whose events are relayed."""

    def __init__(self, engine: Engine, broker: Broker) -> None:
        self.engine = engine
        self.broker = broker
        self.relay = EventRelay(engine.node, broker, event_json)
        engine.node.add_listener(self.relay)
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.engine.start()
        self._running = [asyncio.create_task(self.broker.run()), asyncio.create_task(self.relay.run())]

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def relay_engine(store: FaultyStore, server: NatsServer) -> RelayEngine:
    place = BrokerConfig((server.url,), (server.url,), "", "LIVENESS", 1)
    # Only the relay's time passes, so that no lease expires.
    engine = Engine(store, ManualClock())
    engine.node.clock = SystemClock()
    return RelayEngine(engine, Broker(place, SystemClock(), Random(7)))


async def started_engine(store: FaultyStore) -> None:
    async def everywhere() -> bool:
        return len(await store.relay_cursors("LIVENESS", range(4))) == 4

    await until(everywhere, "the relay has begun with every shard")


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    return store


@pytest.mark.usefixtures("quiet")
async def test_a_server_that_ends_between_publishing_and_marking_publishes_once(
    store: FaultyStore, store_database: StoreDatabase, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        first = relay_engine(store, broker)
        await first.start()
        reached = asyncio.Event()

        async def never(*args: object) -> None:
            reached.set()
            await asyncio.Event().wait()

        await started_engine(store)
        store.advance_relay_cursors = never  # type: ignore[method-assign, assignment]  # the server ends before the cursor moves
        await first.engine.beat("w")
        await reached.wait()
        assert [body(message)["type"] for message in await messages([broker], EVENTS)] == ["WorkerRegistered"]
        await first.end()
        await first.engine.crash()

        again = FaultyStore(store_database.connect())
        await again.open(4, "tests")
        second = relay_engine(again, broker)
        await second.start()
        await second.engine.beat("v")

        async def acknowledged() -> bool:
            cursors = await again.relay_cursors("LIVENESS", range(4))
            return all(cursors[shard.id] >= shard.durable_seq for shard in second.engine.node.shards())

        await until(acknowledged, "everything is marked")
        types = [body(message)["type"] for message in await messages([broker], EVENTS)]
        assert sorted(types) == ["ShardTaken"] * 4 + ["WorkerRegistered"] * 2
        await second.end()
        await second.engine.stop()


@pytest.mark.usefixtures("quiet")
async def test_a_node_that_lost_a_shard_does_not_move_its_cursor(store: FaultyStore, tmp_path: Path) -> None:
    async with one_server(tmp_path) as broker:
        relay = relay_engine(store, broker)
        await relay.start()
        await started_engine(store)
        before = await store.relay_cursors("LIVENESS", range(4))
        await store.take_over(range(4), "another", 0)
        owned = {shard.id: shard.epoch for shard in relay.engine.node.shards()}
        with pytest.raises(ShardsLost):
            await store.advance_relay_cursors("LIVENESS", owned, dict.fromkeys(owned, 1000))
        assert await store.relay_cursors("LIVENESS", range(4)) == before
        await relay.end()
        await relay.engine.crash()


@pytest.mark.usefixtures("quiet")
async def test_events_that_were_deleted_before_they_were_relayed_are_reported(
    store: FaultyStore, store_database: StoreDatabase, tmp_path: Path
) -> None:
    """The server ran without its relay for longer than events are kept."""
    async with one_server(tmp_path) as broker:
        first = relay_engine(store, broker)
        await first.start()
        await started_engine(store)
        await first.end()
        for number in range(3):
            await first.engine.beat("w", session_id=str(number))
        await first.engine.stop()

        again = FaultyStore(store_database.connect())
        await again.open(4, "tests")
        snapshots = await again.take_over(range(4), "tests", 0)
        assert await again.prune_events({shard.shard_id: shard.epoch for shard in snapshots}, {}, 2**62)
        second = relay_engine(again, broker)
        await second.start()
        await second.engine.beat("v")

        async def relayed() -> bool:
            bodies = [body(message) for message in await messages([broker], EVENTS)]
            return any(event.get("worker_instance_key") == "v" for event in bodies)

        await until(relayed, "the relay goes on after the gap")
        assert 3 <= second.relay.deleted_unpublished <= 3 + 2 * 4
        await second.end()
        await second.engine.stop()


async def test_the_subject_names_the_namespace(make_server: MakeServer, tmp_path: Path) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker], "--relay-events")
        await server.start()
        await lose(server, "w", 1)
        await until_done(server, 1)
        await wait_caught_up(server)
        assert await messages([broker], f"liveness.events.{NAMESPACE}.*")
        assert not await messages([broker], "liveness.events.other.*")
