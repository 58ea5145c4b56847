"""Wall clocks that are minutes apart have no effect; the tests also use them to see which node wrote a row."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.crash.scale import seeds
from tests.system.cluster.cluster_checks import check_cluster, check_writers
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import LEASE_MS, Cluster
from tests.system.cluster.test_node_loss import SOME, load_on, no_steady_worker_lapsed, taken_over
from tests.system.server.crash_loop import ReportResult, acknowledged

MINUTE_MS = 60_000
SKEWS_MS = (0, 10 * MINUTE_MS, -7 * MINUTE_MS)


async def stop_one_and_kill_another(
    cluster: Cluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    await cluster.start()
    skew_by_owner = {node.node_id: skew for node, skew in zip(cluster.nodes, SKEWS_MS, strict=True)}
    _, zombie, victim = cluster.nodes
    async with load_on(cluster, seed) as (ledger, load):
        zombie.suspend()
        zombie.excluded = True
        stood_still = asyncio.create_task(asyncio.sleep(2 * LEASE_MS / 1_000))
        await taken_over(cluster, zombie)
        await stood_still
        zombie.resume()
        zombie.excluded = False
        await cluster.all_served()
        await acknowledged(ledger, SOME)
        await victim.kill()
        await taken_over(cluster, victim)
    no_steady_worker_lapsed(ledger, load)
    figures = await check_cluster(cluster, cluster_database.store_database, ledger)
    rows = await check_writers(cluster_database.store_database, skew_by_owner, time.time_ns() // 1_000_000)
    report_result(f"{rows} rows, each with its owner's clock; {figures}")


async def test_clocks_that_are_minutes_apart_change_nothing(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    await stop_one_and_kill_another(
        make_cluster(cluster_database.url, skews_ms=SKEWS_MS), cluster_database, report_result, seed=6
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(60, 8))
async def test_skewed_clocks_change_nothing_in_many_runs(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    cluster = make_cluster(cluster_database.url, skews_ms=SKEWS_MS, seed=seed)
    await stop_one_and_kill_another(cluster, cluster_database, report_result, seed)
