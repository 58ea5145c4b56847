"""When a node is killed, is stopped or cannot reach the database, other nodes serve its shards and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.routing.forwarding import TARGET_NODE_HEADER
from liveness.v1 import service_pb2, worker_pb2
from tests.crash.scale import seeds
from tests.system.cluster.cluster_checks import check_cluster
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import LEASE_MS, SHARDS, SHORT_NODE_LEASE, Cluster, Node
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_CHECKPOINTS
from tests.system.server.crash_loop import ReportResult, acknowledged
from tests.system.server.ledger import NAMESPACE, Ledger
from tests.system.server.load import Load
from tests.system.worker_processes.tcp_proxy import Proxy

TAKE_OVER_SECONDS_MAX = 10
SOME = 150
"""Calls acknowledged before and after the fault, so that there is something to lose."""
LOOKS = 5
SENT_SECONDS = 0.3
"""After this time, messages to a stopped process are in its socket."""
STEADY = ("unary", "batch")
TURN_SECONDS_MAX = 0.5
"""Between an answer and the next heartbeat, which is due after less than a tenth of a second."""
AT_DEFAULTS = {**NO_CHECKPOINTS, "LIVENESS_TAKEOVER_GRACE_MS": "2000"}
"""The grace has no influence on take-overs, and would only make the test longer."""


@asynccontextmanager
async def load_on(cluster: Cluster, seed: int) -> AsyncIterator[tuple[Ledger, Load]]:
    """Run a load whose calls go to any node; a caller without a prompt answer asks another node."""
    ledger = Ledger(cluster)
    load = Load(
        cluster,
        ledger,
        Random(seed),
        unary=10,
        short_lived=6,
        goodbyes=False,
        leases_ms=(4_000, 5_000),
        call_seconds_max=0.6,
        pace_s=0.06,
    )
    async with load:
        await acknowledged(ledger, SOME)
        yield ledger, load
        await acknowledged(ledger, SOME)
        load.pause()
        await load.wait_idle()


async def taken_over(cluster: Cluster, node: Node) -> float:
    """Wait until the other nodes serve all shards. Returns the seconds that it took."""
    began = time.monotonic()
    await cluster.all_served(by=cluster.others(node))
    return time.monotonic() - began


def no_steady_worker_lapsed(ledger: Ledger, load: Load) -> None:
    """Check that no steady worker lost its lease.

    The ledger always checks that no lease ended early. A lease that ended because its heartbeat came too late counts
    only if this process, which sends the heartbeats, did not stall.
    """
    if load.slowest_turn_s > TURN_SECONDS_MAX:
        return
    for kind in STEADY:
        assert not ledger.lapsed(kind), (
            f"{ledger.lapsed(kind)} lost their leases although they kept sending heartbeats"
        )


# -- killed


async def kill_one(
    cluster: Cluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    random = Random(seed)
    await cluster.start()
    async with load_on(cluster, seed) as (ledger, load):
        victim = random.choice(cluster.nodes)
        await victim.kill()
        seconds = await taken_over(cluster, victim)
        assert seconds < TAKE_OVER_SECONDS_MAX
    no_steady_worker_lapsed(ledger, load)
    report_result(
        f"served again after {seconds:.1f} s; {await check_cluster(cluster, cluster_database.store_database, ledger)}"
    )


async def test_other_nodes_serve_a_killed_nodes_shards_within_seconds(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    """At default settings."""
    await kill_one(
        make_cluster(cluster_database.url, environ=AT_DEFAULTS), cluster_database, report_result, seed=1
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(10, 10))
async def test_killed_nodes_lose_no_acknowledged_heartbeat(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    await kill_one(
        make_cluster(cluster_database.url, environ=AT_DEFAULTS, seed=seed),
        cluster_database,
        report_result,
        seed,
    )


# -- stopped and continued


async def ask_zombie(zombie: Node, key: str) -> worker_pb2.Worker | None:
    """Read a worker from this node, without forwarding; None if it refuses."""
    request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
    try:
        answer = await zombie.forwarded.DescribeWorker(
            request, metadata=((TARGET_NODE_HEADER, zombie.node_id),), timeout=10
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None
    return answer.worker


async def beat_zombie(zombie: Node, key: str) -> bool:
    """Return whether this node itself acknowledged a heartbeat."""
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE)
    request.heartbeat.worker_instance_key = key
    request.heartbeat.lease_duration.FromSeconds(5)  # over long before the final check
    try:
        await zombie.forwarded.RecordWorkerHeartbeat(
            request, metadata=((TARGET_NODE_HEADER, zombie.node_id),), timeout=10
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


async def stop_and_continue(
    cluster: Cluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    await cluster.start()
    async with load_on(cluster, seed) as (ledger, load):
        before = await cluster.all_served()

        def lives_on(key: str) -> str:
            return before[shard_of(NAMESPACE, key, SHARDS)].node_id

        population = Counter(map(lives_on, ledger.keys()))
        zombie = max(cluster.nodes, key=lambda node: population[node.node_id])
        zombie.suspend()
        zombie.excluded = True
        stood_still = asyncio.create_task(asyncio.sleep(2 * LEASE_MS / 1_000))
        seconds = await taken_over(cluster, zombie)
        await stood_still
        await acknowledged(ledger, SOME)
        load.pause()
        await load.wait_idle()
        await audit_workers(cluster, ledger)
        keys = [key for key in ledger.keys() if lives_on(key) == zombie.node_id]  # noqa: SIM118
        probes = [key for key in map("probe-{}".format, range(60)) if lives_on(key) == zombie.node_id]
        # The calls wait in its socket when it resumes, so that it serves them before it can learn of its loss.
        looks = [asyncio.create_task(ask_zombie(zombie, key)) for key in keys for _ in range(LOOKS)]
        beats = [asyncio.create_task(beat_zombie(zombie, key)) for key in probes]
        await asyncio.sleep(SENT_SECONDS)
        zombie.resume()
        shown, taken = await asyncio.gather(*looks), await asyncio.gather(*beats)
        for key, worker in zip((key for key in keys for _ in range(LOOKS)), shown, strict=True):
            if worker is not None:
                ledger.seen(key, worker)
        for key in (key for key, took in zip(probes, taken, strict=True) if took):
            request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
            await cluster.liveness.DescribeWorker(
                request
            )  # it was acknowledged, so every node must know the worker
        zombie.excluded = False
        after = await cluster.all_served()
        assert all(
            after[id].epoch > shard.epoch for id, shard in before.items() if shard.node_id == zombie.node_id
        )
        # On a busy machine it may find first that its lease is over.
        losses = ("another node has taken shards", "this node cannot renew its lease")
        assert any(map(zombie.has_logged, losses)), zombie.log_text()
        load.resume()
    no_steady_worker_lapsed(ledger, load)
    answered = sum(worker is not None for worker in shown)
    figures = await check_cluster(cluster, cluster_database.store_database, ledger)
    report_result(f"taken after {seconds:.1f} s; it answered {answered} of {len(shown)} reads; {figures}")


async def test_a_resumed_node_shows_and_commits_no_old_data(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    await stop_and_continue(make_cluster(cluster_database.url), cluster_database, report_result, seed=2)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(20, 10))
async def test_resumed_nodes_lose_no_acknowledged_heartbeat(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult, seed: int
) -> None:
    await stop_and_continue(
        make_cluster(cluster_database.url, seed=seed), cluster_database, report_result, seed
    )


# -- cut off from the database


async def cut_off(
    make_cluster: MakeCluster,
    cluster_database: ClusterDatabase,
    report_result: ReportResult,
    how: str,
    seed: int,
) -> None:
    address = cluster_database.url.partition("@")[2].partition("/")[0]
    async with Proxy(address) as way:
        cluster = make_cluster(
            [cluster_database.url, cluster_database.url, cluster_database.url.replace(address, way.address)],
            environ=SHORT_NODE_LEASE,
            seed=seed,
        )
        await cluster.start()
        node = cluster.nodes[2]
        async with load_on(cluster, seed) as (ledger, load):
            if how == "black hole":
                way.black_hole()
            else:
                way.vanish()
            seconds = await taken_over(cluster, node)
            await acknowledged(ledger, SOME)
            if how == "black hole":
                way.heal()
            else:
                await way.come_back()
            await cluster.all_served()
        no_steady_worker_lapsed(ledger, load)
        report_result(
            f"{how}: taken after {seconds:.1f} s; {await check_cluster(cluster, cluster_database.store_database, ledger)}"
        )


@pytest.mark.parametrize("how", [pytest.param("black hole", marks=pytest.mark.crash_long), "closed"])
async def test_a_node_without_its_database_is_replaced_and_comes_back(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult, how: str
) -> None:
    await cut_off(make_cluster, cluster_database, report_result, how, seed=3)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(30, 4))
@pytest.mark.parametrize("how", ["black hole", "closed"])
async def test_nodes_cut_off_from_the_database_lose_no_acknowledged_heartbeat(
    make_cluster: MakeCluster,
    cluster_database: ClusterDatabase,
    report_result: ReportResult,
    how: str,
    seed: int,
) -> None:
    await cut_off(make_cluster, cluster_database, report_result, how, seed)
