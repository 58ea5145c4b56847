"""A node stops inside its transaction, after the epoch check and before COMMIT, and other nodes take its shards."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from signal import SIGCONT

import grpc
import pytest

from liveness.v1 import service_pb2
from tests.crash.failpoint import MODULE, Failpoint
from tests.crash.scale import seeds
from tests.system.cluster.cluster_checks import check_cluster
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import LEASE_MS, SHORT_NODE_LEASE, Cluster
from tests.system.cluster.test_node_loss import SOME, load_on, no_steady_worker_lapsed, taken_over
from tests.system.server.conftest import MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged
from tests.system.server.ledger import NAMESPACE, Beat
from tests.system.server.server_process import ServerProcess

SHARDS = 4
CALL_SECONDS_MAX = 60
ROWS_MAX = 100


def stopped(server: ServerProcess) -> None:
    """Wait until the process has stopped itself."""
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)


async def test_a_stopped_owner_that_lost_its_shard_cannot_commit(
    make_server: MakeServer, cluster_database: ClusterDatabase, tmp_path: Path
) -> None:
    failpoint = Failpoint(tmp_path / "failpoint")
    environ = {"LIVENESS_NODE_LEASE_MS": str(LEASE_MS), **failpoint.environ}
    zombie = make_server(cluster_database.url, shards=SHARDS, environ=environ, module=MODULE)
    await zombie.start()
    beat = Beat("worker", "session", 1, 60_000, frozenset(["activity"]))
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat.message())
    failpoint.arm("in transaction", "stop")
    call = asyncio.ensure_future(zombie.liveness.RecordWorkerHeartbeat(request, timeout=CALL_SECONDS_MAX))
    await failpoint.wait_reached()
    await asyncio.to_thread(stopped, zombie)
    successor = await cluster_database.store_database.open(SHARDS)
    seen = await successor.read_cluster()
    # What another node does about a silent one: it ends the database sessions and takes the shards.
    await successor.end_sessions_of([node.node_id for node in seen.nodes])
    snapshots = await successor.take_over(range(SHARDS), "successor", time.time_ns() // 1_000_000)
    taken = {snapshot.shard_id: snapshot.last_seq for snapshot in snapshots}
    before = {
        shard_id: await successor.read_log(shard_id, 0, last_seq, ROWS_MAX)
        for shard_id, last_seq in taken.items()
    }
    assert not any(row.worker for rows in before.values() for row in rows), (
        "the commit was durable before the node stopped"
    )
    zombie.signal(SIGCONT)
    [answer] = await asyncio.gather(call, return_exceptions=True)
    if isinstance(answer, grpc.aio.AioRpcError):
        assert answer.code() is grpc.StatusCode.UNAVAILABLE, answer
    for shard_id, last_seq in taken.items():
        rows = await successor.read_log(shard_id, 0, last_seq, ROWS_MAX)
        assert rows == before[shard_id], (
            "an owner whose shards were taken changed what its successor had read"
        )
    if not isinstance(answer, BaseException):
        # The node took its shards back before it answered. Then its promise must be in the database.
        look = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="worker")
        await zombie.liveness.DescribeWorker(look, timeout=CALL_SECONDS_MAX)
    await cluster_database.store_database.close()


async def stop_in_a_transaction(
    cluster: Cluster,
    cluster_database: ClusterDatabase,
    report_result: ReportResult,
    failpoint: Failpoint,
    seed: int,
) -> None:
    zombie = cluster.nodes[seed % len(cluster.nodes)]
    zombie.module = MODULE
    zombie.environ |= failpoint.environ
    await cluster.start()
    async with load_on(cluster, seed) as (ledger, load):
        before = await cluster.all_served()
        failpoint.arm("in transaction", "stop")
        await failpoint.wait_reached()
        await asyncio.to_thread(stopped, zombie)
        zombie.excluded = True
        seconds = await taken_over(cluster, zombie)
        await acknowledged(ledger, SOME)
        zombie.resume()
        zombie.excluded = False
        after = await cluster.all_served()
        assert all(
            after[id].epoch > shard.epoch for id, shard in before.items() if shard.node_id == zombie.node_id
        )
    no_steady_worker_lapsed(ledger, load)
    figures = await check_cluster(cluster, cluster_database.store_database, ledger)
    report_result(f"taken after {seconds:.1f} s; {figures}")


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(80, 8))
async def test_stopped_owners_lose_no_acknowledged_heartbeat(
    make_cluster: MakeCluster,
    cluster_database: ClusterDatabase,
    report_result: ReportResult,
    tmp_path: Path,
    seed: int,
) -> None:
    cluster = make_cluster(cluster_database.url, environ=SHORT_NODE_LEASE, seed=seed)
    await stop_in_a_transaction(
        cluster, cluster_database, report_result, Failpoint(tmp_path / "failpoint"), seed
    )
