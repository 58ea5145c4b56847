"""Wall clocks that are minutes apart change nothing; and they tell who wrote what."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.cluster.conftest import MakeCluster, Place
from tests.cluster.nodes import LEASE_MS, Cluster
from tests.cluster.test_node_lost import SOME, load_on, no_steady_worker_lapsed, taken_over
from tests.cluster.verdict import pass_verdict, written_by_owners_only
from tests.crash.scale import seeds
from tests.end_to_end.campaign import Say, acknowledged

MINUTE_MS = 60_000
SKEWS_MS = (0, 10 * MINUTE_MS, -7 * MINUTE_MS)


async def stop_one_and_kill_another(cluster: Cluster, place: Place, say: Say, seed: int) -> None:
    await cluster.start()
    skew_by_owner = {node.node_id: skew for node, skew in zip(cluster.nodes, SKEWS_MS, strict=True)}
    _, zombie, victim = cluster.nodes
    async with load_on(cluster, seed) as (ledger, load):
        zombie.stand_still()
        zombie.avoided = True
        stood_still = asyncio.create_task(asyncio.sleep(2 * LEASE_MS / 1_000))
        await taken_over(cluster, zombie)
        await stood_still
        zombie.go_on()
        zombie.avoided = False
        await cluster.all_served()
        await acknowledged(ledger, SOME)
        await victim.kill()
        await taken_over(cluster, victim)
    no_steady_worker_lapsed(ledger, load)
    figures = await pass_verdict(cluster, place.home, ledger)
    rows = await written_by_owners_only(place.home, skew_by_owner, time.time_ns() // 1_000_000)
    say(f"{rows} rows, each with its owner's clock; {figures}")


async def test_clocks_that_are_minutes_apart_change_nothing(
    make_cluster: MakeCluster, place: Place, say: Say
) -> None:
    await stop_one_and_kill_another(make_cluster(place.url, skews_ms=SKEWS_MS), place, say, seed=6)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(60, 8))
async def test_clocks_long(make_cluster: MakeCluster, place: Place, say: Say, seed: int) -> None:
    cluster = make_cluster(place.url, skews_ms=SKEWS_MS, seed=seed)
    await stop_one_and_kill_another(cluster, place, say, seed)
