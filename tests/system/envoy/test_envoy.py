"""Calls, streams and errors pass through a standard proxy, and nodes behind it may end."""

from __future__ import annotations

import asyncio
from random import Random
from signal import SIGTERM
from typing import Any, cast

import grpc
import pytest

from liveness.rpc_details import details_from_trailer
from liveness.v1 import service_pb2, worker_pb2
from tests.system.cluster.steady_workers import SteadyWorkers
from tests.system.envoy.conftest import EnvoyCluster
from tests.system.server.audit import audit_workers
from tests.system.server.crash_loop import ReportResult, acknowledged, check
from tests.system.server.ledger import NAMESPACE, REGISTERED, REPEATED, Beat, Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess

TURN_SECONDS_MAX = 1.0
"""A worker of this process that was later than this may have lost its lease by its own fault."""
LEASE_MS = 10_000
LEASES_MS = (10_000, 12_000)
"""Longer than the take-over of a killed node's shards on a busy machine: until then the answer to a batch waits, and
with it the next heartbeats of all its workers.
"""


class LedgerWithRepeats(Ledger):
    """Nodes repeat a call that a lost owner did not answer, so a heartbeat that the client sent once may be answered as
    repeated.
    """

    def beat_answered(self, beat: Beat, sent_at: float, result: worker_pb2.HeartbeatResult) -> None:
        if result.outcome == REPEATED:
            self.beat_in_doubt(beat, sent_at)
        super().beat_answered(beat, sent_at, result)


def heartbeat(key: str, sequence: int = 1) -> worker_pb2.WorkerHeartbeat:
    return Beat(key, f"session-{key}", sequence, LEASE_MS).message()


async def beat(envoy_cluster: EnvoyCluster, key: str, sequence: int = 1) -> worker_pb2.HeartbeatResult:
    request = service_pb2.RecordWorkerHeartbeatRequest(
        namespace=NAMESPACE, heartbeat=heartbeat(key, sequence)
    )
    return await envoy_cluster.envoy.liveness.RecordWorkerHeartbeat(request)


async def test_calls_streams_and_errors_pass_through_the_proxy(envoy_cluster: EnvoyCluster) -> None:
    liveness = envoy_cluster.envoy.liveness
    watching: Any = liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace=NAMESPACE))
    assert not (await watching.read()).events

    # Separate calls go to different nodes; a batch goes to one.
    assert [(await beat(envoy_cluster, f"one-{n}")).outcome for n in range(6)] == [REGISTERED] * 6
    batch = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(f"many-{n}") for n in range(20)]
    )
    items = (await liveness.RecordWorkerHeartbeats(batch)).items
    assert [item.result.outcome for item in items] == [REGISTERED] * 20

    registered: set[str] = set()
    async with asyncio.timeout(30):
        while len(registered) < 26:
            events = (await watching.read()).events
            registered |= {e.worker_instance_key for e in events if e.type == "WorkerRegistered"}
    watching.cancel()

    stream: Any = liveness.Attach()
    for key in ("one-0", "one-1", "many-7"):
        attach = service_pb2.AttachRequest.Attach(
            namespace=NAMESPACE, worker_instance_key=key, session_id=f"session-{key}"
        )
        await stream.write(service_pb2.AttachRequest(attach=attach))
    attached: set[str] = set()
    async with asyncio.timeout(30):
        while len(attached) < 3:
            answer = await stream.read()
            if answer.HasField("attached"):
                assert not answer.attached.HasField("status"), answer
                attached.add(answer.attached.worker_instance_key)
    stream.cancel()

    await beat(envoy_cluster, "one-0", 5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await beat(envoy_cluster, "one-0", 4)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    details = details_from_trailer(refused.value.code(), refused.value.trailing_metadata())
    assert details.reason == "STALE_HEARTBEAT"


async def test_nodes_that_end_behind_the_proxy_cost_no_lease(
    envoy_cluster: EnvoyCluster, report_result: ReportResult
) -> None:
    """One node stops gracefully and one is killed; clients repeat unanswered calls."""
    front, nodes = envoy_cluster.envoy, envoy_cluster.nodes
    as_server = cast(ServerProcess, front)
    ledger = LedgerWithRepeats(as_server)
    async with Load(as_server, ledger, Random(6), short_lived=0, leases_ms=LEASES_MS) as load:
        await acknowledged(ledger, 100)
        assert await nodes[0].end(SIGTERM) == 0, nodes[0].log_text()
        await front.wait_healthy(2)
        await acknowledged(ledger, 100)
        await nodes[1].kill()
        await front.wait_healthy(1)
        await acknowledged(ledger, 300)
        load.pause()
        await load.wait_idle()
        await audit_workers(as_server, ledger)
    report_result(f"{ledger.acked} acknowledged, {ledger.in_doubt} in doubt, {ledger.lapses} leases lapsed")
    check(ledger)
    assert not ledger.lapsed()


async def test_a_node_cut_off_from_the_database_behind_the_proxy_costs_no_lease(
    envoy_cluster: EnvoyCluster, report_result: ReportResult
) -> None:
    """The proxy stops using the node, and what arrives there before is forwarded."""
    front, nodes = envoy_cluster.envoy, envoy_cluster.nodes
    async with SteadyWorkers("steady", front.channel, count=24, lease_ms=4_000) as fleet:
        await fleet.all_answered()
        envoy_cluster.way_to_database.black_hole()
        await front.wait_healthy(len(nodes) - 1)
        for _ in range(5):
            await fleet.all_answered()
        envoy_cluster.way_to_database.heal()
        await front.wait_healthy(len(nodes))
        await fleet.all_answered()
    report_result(f"{len(fleet.errors)} errors: {sorted(set(fleet.errors))}")
    if fleet.slowest_turn_s < TURN_SECONDS_MAX:
        assert not await fleet.lost_leases(front.liveness)
