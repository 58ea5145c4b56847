"""Nodes that stop in good order, one after the other: no worker of the SDK notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from random import Random
from signal import SIGTERM

import pytest

from liveness.v1 import worker_pb2
from tests.cluster.conftest import MakeCluster, Place
from tests.cluster.nodes import Cluster, Node
from tests.cluster.verdict import pass_verdict
from tests.crash.scale import seeds
from tests.end_to_end.campaign import Say, acknowledged
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.workers import Crew, until
from tests.store.next_version import NEXT, VERSION, write_migrations

WORKERS = 3
LEASE = 6.0
GRACE = 3.0
PORTION = 8
"""Activities finished before, and after, each stop."""


@asynccontextmanager
async def crew_at_work(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[Crew, Record]]:
    """Workers that know all nodes, each with one activity that lasts until the end, and others that come and go."""
    async with Record(cluster.nodes[0].place, "sdk") as record:
        crew = Crew(folder, record.namespace, cluster.addresses, [])
        try:
            await asyncio.gather(
                *(
                    crew.join(f"worker-{number}", lease=LEASE, grace=GRACE, slots=3)
                    for number in range(WORKERS)
                )
            )
            for name in names("long", WORKERS):
                await record.schedule(name, "gated")
            await until(lambda: len(crew.noted(Deed.STARTED)) == WORKERS, crew.story)
            yield crew, record
            for name in names("long", WORKERS):
                crew.open_gate(name)
            await record.assert_each_completed_once()
            # Whatever was handed out was done by whom it was handed to, in the lease that it began with.
            assert not crew.noted(Deed.LOST), crew.story()
            for worker in crew.members:
                seen = await record.worker(worker.name)
                assert (seen.state, seen.lease_epoch) == (worker_pb2.WORKER_STATE_ACTIVE, 1), worker.story()
            for name in names("long", WORKERS):
                assert (await record.completion(name, "gated"))["attempt"] == 1, crew.story()
        finally:
            await crew.dismiss()


async def some_are_finished(crew: Crew, record: Record, prefix: str) -> None:
    wanted = len(crew.noted(Deed.FINISHED)) + PORTION
    for name in names(prefix, PORTION):
        await record.schedule(name, "quick", ms=30)
    await until(lambda: len(crew.noted(Deed.FINISHED)) >= wanted, crew.story)


async def test_one_node_stops_for_good(
    make_cluster: MakeCluster, place: Place, tmp_path: Path, say: Say
) -> None:
    cluster = make_cluster(place.url)
    await cluster.start()
    ledger = Ledger(cluster)
    async with (
        crew_at_work(cluster, tmp_path) as (crew, record),
        Load(cluster, ledger, Random(4), unary=6, mayflies=3, goodbyes=False) as load,
    ):
        await acknowledged(ledger, 50)
        leaving = cluster.nodes[2]
        leaving.avoided = True
        await some_are_finished(crew, record, "before")
        assert await leaving.end(SIGTERM) == 0, leaving.said()
        await cluster.all_served(by=cluster.others(leaving))
        await some_are_finished(crew, record, "after")
        load.pause()
        await load.quiet()
    assert not ledger.in_doubt, "heartbeats failed, though other nodes took them"
    say(await pass_verdict(cluster, place.home, ledger))


async def restart_all(
    cluster: Cluster,
    place: Place,
    folder: Path,
    say: Say,
    seed: int,
    prepare: Callable[[Node], object] = lambda node: None,
) -> list[set[str]]:
    """`prepare`: told of each node before it is started anew. Returns which versions served side by side afterwards."""
    versions = []
    await cluster.start()
    ledger = Ledger(cluster)
    order = Random(seed).sample(cluster.nodes, len(cluster.nodes))
    async with (
        crew_at_work(cluster, folder) as (crew, record),
        Load(cluster, ledger, Random(seed), unary=6, mayflies=3, goodbyes=False) as load,
    ):
        for number, node in enumerate(order):
            await some_are_finished(crew, record, f"part-{number}")
            node.avoided = True
            prepare(node)
            await node.restart()
            await cluster.all_served()
            versions.append({seen.version for seen in (await node.list_nodes()).values()})
            node.avoided = False
        await some_are_finished(crew, record, "last")
        load.pause()
        await load.quiet()
    assert not ledger.in_doubt, "heartbeats failed, though other nodes took them"
    say(await pass_verdict(cluster, place.home, ledger))
    return versions


async def test_all_nodes_are_replaced_by_newer_ones_one_after_the_other(
    make_cluster: MakeCluster, place: Place, tmp_path: Path, say: Say
) -> None:
    migrations = write_migrations(tmp_path / "migrations")
    cluster = make_cluster(place.url)

    def upgrade(node: Node) -> None:
        node.module = "tests.cluster.newer_node"
        node.environ = {**node.environ, "MIGRATIONS": str(migrations)}

    today = version("liveness")
    versions = await restart_all(cluster, place, tmp_path, say, seed=5, prepare=upgrade)
    assert versions == [{today, VERSION}, {today, VERSION}, {VERSION}]
    revision = await place.home.run(
        lambda connection: connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    )
    assert revision == NEXT


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(50, 8))
async def test_rolling_restart_long(
    make_cluster: MakeCluster, place: Place, tmp_path: Path, say: Say, seed: int
) -> None:
    await restart_all(make_cluster(place.url, seed=seed), place, tmp_path, say, seed)
