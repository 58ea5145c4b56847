"""A watcher sees every event of every shard once and in order, whoever serves the shard, and resumes anywhere."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import service_pb2
from liveness.v1.event_pb2 import Event
from tests.cluster.conftest import MakeCluster, Place
from tests.cluster.nodes import PASSING, SECONDS_MAX, SHARDS, Cluster, Node
from tests.crash.scale import seeds
from tests.end_to_end.campaign import Say
from tests.sdk_end_to_end.record import Record

NAMESPACE = "watched"


class Watcher:
    """Reads on in a task of its own."""

    def __init__(self, node: Node, token: str = "") -> None:
        self.events: list[Event] = []
        self.token = token
        self._more = asyncio.Event()
        request = service_pb2.WatchEventsRequest(
            namespace=NAMESPACE, resume_token=token, from_beginning=not token
        )
        self._call = node.liveness.WatchEvents(request, timeout=4 * SECONDS_MAX)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for answer in self._call:
                self.events += answer.events
                self.token = answer.resume_token
                self._more.set()
        except grpc.aio.AioRpcError as error:
            if error.code() not in PASSING:
                raise
        except asyncio.CancelledError:
            pass

    async def has_seen(self, names: set[str]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while names - {event.workflow_id for event in self.events}:
                assert not self._reading.done(), "the watch ended"
                self._more.clear()
                await self._more.wait()

    async def stop(self) -> None:
        self._call.cancel()
        await self._reading


async def leave_marks(record: Record, prefix: str) -> set[str]:
    """An activity on each shard."""
    by_shard: dict[int, str] = {}
    for number in count():
        name = f"{prefix}-{number}"
        by_shard.setdefault(shard_of(NAMESPACE, name, SHARDS), name)
        if len(by_shard) == SHARDS:
            break
    for name in by_shard.values():
        await record.schedule(name, "nobody", task_queue="nobody works here")
    return set(by_shard.values())


def places(events: list[Event]) -> dict[int, list[int]]:
    sequences: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        sequences[event.shard_id].append(event.sequence)
    return sequences


async def watch_through_deaths(cluster: Cluster, place: Place, say: Say) -> None:
    await cluster.start()
    first, second, third = cluster.nodes
    async with Record(first.place, NAMESPACE) as record:
        watcher = Watcher(first)
        await watcher.has_seen(await leave_marks(record, "before"))
        scheduling = asyncio.create_task(_schedule(record, 60))
        await third.kill()
        await cluster.all_served(by=[first, second])
        await scheduling
        await watcher.has_seen({f"meanwhile-{number}" for number in range(60)})
        await watcher.has_seen(await leave_marks(record, "after"))
        # The node that was watched dies too, and the last one is asked to go on where it stopped.
        await first.kill()
        await watcher.stop()
        await cluster.all_served(by=[second])
    async with Record(second.place, NAMESPACE) as record:
        resumed = Watcher(second, watcher.token)
        marks = await leave_marks(record, "resumed")
        await resumed.has_seen(marks)
        await resumed.stop()
        anew = Watcher(second)
        await anew.has_seen(marks)
        await anew.stop()
    seen, whole = places(watcher.events + resumed.events), places(anew.events)
    assert len(whole) == SHARDS
    for shard_id, sequences in whole.items():
        assert sequences == sorted(set(sequences))
        assert seen[shard_id] == sequences, f"shard {shard_id}"
    say(f"{len(anew.events)} events of {SHARDS} shards seen once each, through two deaths")
    await cluster.stop()
    await place.home.close()


async def _schedule(record: Record, how_many: int) -> None:
    for number in range(how_many):
        await record.schedule(f"meanwhile-{number}", "nobody", task_queue="nobody works here")


async def test_a_watcher_misses_nothing_and_resumes_elsewhere(
    make_cluster: MakeCluster, place: Place, say: Say
) -> None:
    await watch_through_deaths(make_cluster(place.url), place, say)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(70, 8))
async def test_watch_long(make_cluster: MakeCluster, place: Place, say: Say, seed: int) -> None:
    await watch_through_deaths(make_cluster(place.url, seed=seed), place, say)
