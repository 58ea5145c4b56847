"""Nodes stop gracefully, one after the other, and no SDK worker notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from signal import SIGTERM

import pytest

from liveness.v1 import worker_pb2
from liveness.version import VERSION as TODAY
from tests.crash.scale import seeds
from tests.integration.store.next_version import NEXT, VERSION, write_migrations
from tests.system.cluster.cluster_checks import check_cluster
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import Cluster, Node
from tests.system.server.crash_loop import ReportResult, acknowledged
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, until

WORKERS = 3
LEASE = 6.0
GRACE = 3.0
PORTION = 8
"""Activities finished before, and after, each stop."""


@asynccontextmanager
async def busy_workers(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[WorkerGroup, NamespaceClient]]:
    """Run workers that know all nodes; each has one activity that lasts until the end, and short ones."""
    async with NamespaceClient(cluster.nodes[0].fixed_address, "sdk") as namespace_client:
        worker_group = WorkerGroup(folder, namespace_client.namespace, cluster.addresses, [])
        try:
            await asyncio.gather(
                *(
                    worker_group.join(f"worker-{number}", lease=LEASE, grace=GRACE, slots=3)
                    for number in range(WORKERS)
                )
            )
            for name in names("long", WORKERS):
                await namespace_client.schedule(name, "gated")
            await until(lambda: len(worker_group.noted(Action.STARTED)) == WORKERS, worker_group.recent_notes)
            yield worker_group, namespace_client
            for name in names("long", WORKERS):
                worker_group.open_gate(name)
            await namespace_client.assert_each_completed_once()
            # Each handed-out activity was done by the worker that got it, in the lease in which it started.
            assert not worker_group.noted(Action.LOST), worker_group.recent_notes()
            for worker in worker_group.members:
                seen = await namespace_client.worker(worker.name)
                assert (seen.state, seen.lease_epoch) == (worker_pb2.WORKER_STATE_ACTIVE, 1), (
                    worker.recent_notes()
                )
            for name in names("long", WORKERS):
                assert (await namespace_client.completion(name, "gated"))["attempt"] == 1, (
                    worker_group.recent_notes()
                )
        finally:
            await worker_group.close()


async def some_finished(worker_group: WorkerGroup, namespace_client: NamespaceClient, prefix: str) -> None:
    wanted = len(worker_group.noted(Action.FINISHED)) + PORTION
    for name in names(prefix, PORTION):
        await namespace_client.schedule(name, "quick", ms=30)
    await until(lambda: len(worker_group.noted(Action.FINISHED)) >= wanted, worker_group.recent_notes)


async def test_workers_do_not_notice_a_node_that_stops_for_good(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, tmp_path: Path, report_result: ReportResult
) -> None:
    cluster = make_cluster(cluster_database.url)
    await cluster.start()
    ledger = Ledger(cluster)
    async with (
        busy_workers(cluster, tmp_path) as (worker_group, namespace_client),
        Load(cluster, ledger, Random(4), unary=6, short_lived=3, goodbyes=False) as load,
    ):
        await acknowledged(ledger, 50)
        leaving = cluster.nodes[2]
        leaving.excluded = True
        await some_finished(worker_group, namespace_client, "before")
        assert await leaving.end(SIGTERM) == 0, leaving.log_text()
        await cluster.all_served(by=cluster.others(leaving))
        await some_finished(worker_group, namespace_client, "after")
        load.pause()
        await load.wait_idle()
    assert not ledger.in_doubt, "heartbeats failed although other nodes served"
    report_result(await check_cluster(cluster, cluster_database.store_database, ledger))


async def restart_all(
    cluster: Cluster,
    cluster_database: ClusterDatabase,
    folder: Path,
    report_result: ReportResult,
    seed: int,
    prepare: Callable[[Node], object] = lambda node: None,
) -> list[set[str]]:
    """Restart all nodes in turn.

    `prepare` is called with each node before its new start. Returns the versions that served side by side afterwards.
    """
    versions = []
    await cluster.start()
    ledger = Ledger(cluster)
    order = Random(seed).sample(cluster.nodes, len(cluster.nodes))
    async with (
        busy_workers(cluster, folder) as (worker_group, namespace_client),
        Load(cluster, ledger, Random(seed), unary=6, short_lived=3, goodbyes=False) as load,
    ):
        for number, node in enumerate(order):
            await some_finished(worker_group, namespace_client, f"part-{number}")
            node.excluded = True
            prepare(node)
            await node.restart()
            await cluster.all_served()
            versions.append({seen.version for seen in (await node.list_nodes()).values()})
            node.excluded = False
        await some_finished(worker_group, namespace_client, "last")
        load.pause()
        await load.wait_idle()
    assert not ledger.in_doubt, "heartbeats failed although other nodes served"
    report_result(await check_cluster(cluster, cluster_database.store_database, ledger))
    return versions


async def test_workers_do_not_notice_a_rolling_upgrade_to_a_newer_version(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, tmp_path: Path, report_result: ReportResult
) -> None:
    migrations = write_migrations(tmp_path / "migrations")
    cluster = make_cluster(cluster_database.url)

    def upgrade(node: Node) -> None:
        node.module = "tests.system.cluster.next_version_node"
        node.environ = {**node.environ, "MIGRATIONS": str(migrations)}

    versions = await restart_all(cluster, cluster_database, tmp_path, report_result, seed=5, prepare=upgrade)
    assert versions == [{TODAY, VERSION}, {TODAY, VERSION}, {VERSION}]
    revision = await cluster_database.store_database.run(
        lambda connection: connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    )
    assert revision == NEXT


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(50, 8))
async def test_workers_do_not_notice_rolling_restarts(
    make_cluster: MakeCluster,
    cluster_database: ClusterDatabase,
    tmp_path: Path,
    report_result: ReportResult,
    seed: int,
) -> None:
    await restart_all(
        make_cluster(cluster_database.url, seed=seed), cluster_database, tmp_path, report_result, seed
    )
