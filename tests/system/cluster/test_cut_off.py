"""A node that is cut off from the database says so before its lease is over, gives up its shards, and forwards calls to
their new owners: nobody loses a lease, however it reaches the cluster.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from liveness.config.frontend_settings import FrontendSettings
from liveness.domain.keys import shard_of
from liveness.frontend.app import Frontend
from liveness.rpc_details import details_from_trailer
from liveness.v1 import admin_pb2, service_pb2
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import SHARDS, SHORT_NODE_LEASE, Cluster, Node
from tests.system.cluster.steady_workers import NAMESPACE, SteadyWorkers
from tests.system.server.crash_loop import ReportResult
from tests.system.worker_processes.tcp_proxy import Proxy

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
READINESS = health_pb2.HealthCheckRequest(service="liveness.readiness")
TURN_SECONDS_MAX = 1.0
NO_DATABASE_TIMEOUT_S = 9.0
"""Less than the store waits for an answer: a call must not wait for the database."""


async def watch_readiness(node: Node) -> AsyncIterator[int]:
    async for answer in health_pb2_grpc.HealthStub(node.channel).Watch(READINESS):  # type: ignore[attr-defined]
        yield answer.status


async def until_ready(node: Node, wanted: int) -> None:
    async with asyncio.timeout(60):
        async for status in watch_readiness(node):
            if status == wanted:
                return


def http_url(node: Node) -> str:
    (line,) = [line for line in map(json.loads, node.log) if line["event"] == "serving"]
    url: str = line["http"]
    return url.rstrip("/")


def http_get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


async def shards_serving(node: Node) -> float:
    _, text = await asyncio.to_thread(http_get, f"{http_url(node)}/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith("liveness_shards_serving ")]
    return float(line.split()[1])


async def readyz(node: Node) -> int:
    return (await asyncio.to_thread(http_get, f"{http_url(node)}/readyz"))[0]


@asynccontextmanager
async def frontend_of(*nodes: Node) -> AsyncIterator[grpc.aio.Channel]:
    addresses = tuple(node.cluster_address for node in nodes)
    async with Frontend(FrontendSettings(nodes=addresses, listen="127.0.0.1:0")) as frontend:
        channel = grpc.aio.insecure_channel(frontend.address)
        yield channel
        await channel.close()


def database_address(url: str) -> str:
    return url.partition("@")[2].partition("/")[0]


def some_in(shards: Collection[int], name: str, channel: grpc.aio.Channel) -> SteadyWorkers:
    """Workers some of which are in these shards."""
    for number in range(1_000):
        workers = SteadyWorkers(f"{name}{number}", channel)
        if any(shard_of(NAMESPACE, key, SHARDS) in shards for key in workers.keys):
            return workers
    raise AssertionError(f"no worker is in {shards}")


async def test_nobody_loses_a_lease_by_a_node_that_is_cut_off(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase, report_result: ReportResult
) -> None:
    address = database_address(cluster_database.url)
    async with Proxy(address) as way:
        cluster: Cluster = make_cluster(
            [cluster_database.url, cluster_database.url, cluster_database.url.replace(address, way.address)],
            environ={**SHORT_NODE_LEASE, "LIVENESS_HTTP": "127.0.0.1:0"},
        )
        await cluster.start()
        node, other = cluster.nodes[2], cluster.nodes[0]
        await until_ready(node, SERVING)
        async with AsyncExitStack() as stack:
            alone = await stack.enter_async_context(frontend_of(node))
            of_all = await stack.enter_async_context(frontend_of(*cluster.nodes))
            shards = await cluster.shards_of(node)
            fleets = [
                await stack.enter_async_context(some_in(shards, name, channel))
                for name, channel in (("direct", node.channel), ("alone", alone), ("all", of_all))
            ]
            for fleet in fleets:
                await fleet.all_answered()

            way.black_hole()
            await until_ready(node, NOT_SERVING)
            assert await readyz(node) == 503
            assert await shards_serving(node) == 0
            await cluster.all_served(by=cluster.others(node))
            seconds = [await fleet.all_answered() for fleet in fleets]

            # Calls that any node may answer are answered by one that can.
            listed = await node.liveness.ListWorkers(
                service_pb2.ListWorkersRequest(namespace=NAMESPACE), timeout=NO_DATABASE_TIMEOUT_S
            )
            assert len(listed.workers) == sum(len(fleet.keys) for fleet in fleets)
            states = {id: entry.state for id, entry in (await node.list_nodes()).items()}
            assert states[node.node_id] == admin_pb2.NODE_STATE_LOST
            # A frontend that starts now, and knows this node only, finds the others.
            async with frontend_of(node) as late, SteadyWorkers("late", late) as newcomers:
                await newcomers.all_answered()
            for fleet in fleets:
                await fleet.all_answered()

            way.heal()
            await until_ready(node, SERVING)
            await cluster.all_served()
            assert await readyz(node) == 200
            assert await shards_serving(node) == len(await cluster.shards_of(node)) > 0
            for fleet in fleets:
                await fleet.all_answered()
        for fleet in fleets:
            if fleet.slowest_turn_s < TURN_SECONDS_MAX:
                assert not await fleet.lost_leases(other.liveness), "\n".join(fleet.errors)
        report_result(
            f"answered within {max(seconds):.1f} s after the take-over; "
            f"errors: {', '.join(f'{len(fleet.errors)}' for fleet in fleets)}"
        )


async def test_a_cluster_of_one_without_its_database_refuses_quickly_and_comes_back(
    cluster_database: ClusterDatabase,
) -> None:
    address = database_address(cluster_database.url)
    async with Proxy(address) as way:
        node = Node(
            cluster_database.url.replace(address, way.address),
            shards=SHARDS,
            flags=("--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0"),
            environ={**SHORT_NODE_LEASE, "LIVENESS_HTTP": "off"},
        )
        try:
            await node.start()
            await until_ready(node, SERVING)
            async with SteadyWorkers("only", node.channel) as fleet:
                await fleet.all_answered()
                way.black_hole()
                await until_ready(node, NOT_SERVING)
                for call in (
                    node.liveness.DescribeWorker(
                        service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="only-0"),
                        timeout=NO_DATABASE_TIMEOUT_S,
                    ),
                    node.liveness.ListWorkers(
                        service_pb2.ListWorkersRequest(namespace=NAMESPACE), timeout=NO_DATABASE_TIMEOUT_S
                    ),
                ):
                    assert await refusal_reason(call) == "CUT_OFF"
                way.heal()
                await until_ready(node, SERVING)
                await fleet.all_answered()
            if fleet.slowest_turn_s < TURN_SECONDS_MAX:
                assert not await fleet.lost_leases(node.liveness), "\n".join(fleet.errors)
        finally:
            await node.close()


async def refusal_reason(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    return details_from_trailer(refused.value.code(), refused.value.trailing_metadata()).reason
