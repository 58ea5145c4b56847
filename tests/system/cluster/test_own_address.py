"""Nodes that come back at their address under another name, and nodes that give out the address of another one."""

from __future__ import annotations

import asyncio
import json

from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import SHARDS, SHORT_NODE_LEASE, Cluster
from tests.system.cluster.steady_workers import SteadyWorkers
from tests.system.cluster.test_cut_off import TURN_SECONDS_MAX, frontend_of
from tests.system.server.crash_loop import ReportResult
from tests.system.server.server_process import run_to_end

NODE_LEASE_MS = 30_000
"""Longer than a process takes to start: without its successor, the node would not be missed so soon."""


async def test_calls_wait_while_a_node_comes_back_at_its_address_under_another_name(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    cluster: Cluster = make_cluster(
        cluster_database.url,
        environ={**SHORT_NODE_LEASE, "LIVENESS_NODE_LEASE_MS": str(NODE_LEASE_MS)},
    )
    for number, node in enumerate(cluster.nodes):
        node.module = "tests.system.cluster.renamed_node"
        node.environ["HOST_NAME"] = f"container-{number}"
    await cluster.start()
    recreated, other = cluster.nodes[2], cluster.nodes[0]
    async with frontend_of(*cluster.nodes) as frontend:
        async with (
            SteadyWorkers("frontend", frontend, lease_ms=60_000, call_seconds_max=60) as through_frontend,
            SteadyWorkers("node", other.channel, lease_ms=60_000, call_seconds_max=60) as through_node,
        ):
            await asyncio.gather(through_frontend.all_answered(), through_node.all_answered())
            await recreated.kill()
            await recreated.disconnect()
            recreated.environ["HOST_NAME"] = "container-2-again"
            await recreated.start()
            await cluster.all_served()
            await asyncio.gather(through_frontend.all_answered(), through_node.all_answered())
        for fleet in (through_frontend, through_node):
            if fleet.slowest_turn_s < TURN_SECONDS_MAX:
                assert not fleet.errors
                assert not await fleet.lost_leases(other.liveness)
    complaints = [
        line
        for node in cluster.nodes
        for line in map(json.loads, node.log)
        if line["event"].startswith("another node answers at a node's address")
    ]
    assert len(complaints) <= len(cluster.nodes)
    report_result(f"{len(complaints)} lines about it in the logs")


async def test_a_node_that_gives_out_the_address_of_another_one_exits(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase
) -> None:
    cluster: Cluster = make_cluster(cluster_database.url)
    node = cluster.nodes[0]
    await node.start()
    ended = await run_to_end(
        *("serve", "--db", cluster_database.url, "--shards", str(SHARDS)),
        *("--listen", "127.0.0.1:0", "--advertise", node.cluster_address),
    )
    assert ended.code == 2
    assert ended.stderr.strip().splitlines()[-1].endswith("with --advertise.")
    assert node.node_id in ended.stderr
