"""A watcher sees every event of every shard once and in order, whichever node serves the shard, and resumes at any node."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import service_pb2
from liveness.v1.event_pb2 import Event
from tests.crash.scale import seeds
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import SECONDS_MAX, SHARDS, TRANSIENT_CODES, Cluster, Node
from tests.system.server.crash_loop import ReportResult
from tests.system.worker_processes.namespace_client import NamespaceClient

NAMESPACE = "watched"


class Watcher:
    """Reads the stream in its own task."""

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
            if error.code() not in TRANSIENT_CODES:
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


async def schedule_on_each_shard(namespace_client: NamespaceClient, prefix: str) -> set[str]:
    """Schedule an activity on each shard."""
    by_shard: dict[int, str] = {}
    for number in count():
        name = f"{prefix}-{number}"
        by_shard.setdefault(shard_of(NAMESPACE, name, SHARDS), name)
        if len(by_shard) == SHARDS:
            break
    for name in by_shard.values():
        await namespace_client.schedule(name, "nobody", task_queue="nobody works here")
    return set(by_shard.values())


def positions(events: list[Event]) -> dict[int, list[int]]:
    sequences: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        sequences[event.shard_id].append(event.sequence)
    return sequences


async def watch_through_deaths(
    cluster: Cluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    await cluster.start()
    first, second, third = cluster.nodes
    async with NamespaceClient(first.fixed_address, NAMESPACE) as namespace_client:
        watcher = Watcher(first)
        await watcher.has_seen(await schedule_on_each_shard(namespace_client, "before"))
        scheduling = asyncio.create_task(_schedule(namespace_client, 60))
        await third.kill()
        await cluster.all_served(by=[first, second])
        await scheduling
        await watcher.has_seen({f"meanwhile-{number}" for number in range(60)})
        await watcher.has_seen(await schedule_on_each_shard(namespace_client, "after"))
        # The watched node is killed too, and the last node resumes the watch.
        await first.kill()
        await watcher.stop()
        await cluster.all_served(by=[second])
    async with NamespaceClient(second.fixed_address, NAMESPACE) as namespace_client:
        resumed = Watcher(second, watcher.token)
        marks = await schedule_on_each_shard(namespace_client, "resumed")
        await resumed.has_seen(marks)
        await resumed.stop()
        anew = Watcher(second)
        await anew.has_seen(marks)
        await anew.stop()
    seen, whole = positions(watcher.events + resumed.events), positions(anew.events)
    assert len(whole) == SHARDS
    for shard_id, sequences in whole.items():
        assert sequences == sorted(set(sequences))
        assert seen[shard_id] == sequences, f"shard {shard_id}"
    report_result(f"{len(anew.events)} events of {SHARDS} shards seen once each, through two deaths")
    await cluster.stop()
    await cluster_database.store_database.close()


async def _schedule(namespace_client: NamespaceClient, how_many: int) -> None:
    for number in range(how_many):
        await namespace_client.schedule(f"meanwhile-{number}", "nobody", task_queue="nobody works here")


async def test_a_watcher_resumes_at_another_node_and_misses_nothing(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    await watch_through_deaths(make_cluster(cluster_database.url), cluster_database, report_result)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(70, 8))
async def test_watchers_miss_nothing_in_many_runs(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    await watch_through_deaths(make_cluster(cluster_database.url, seed=seed), cluster_database, report_result)
