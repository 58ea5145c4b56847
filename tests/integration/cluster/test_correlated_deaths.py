"""Deaths of workers at the same time on several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import service_pb2
from liveness.v1.death_pb2 import DeathCertificate
from tests.integration.cluster.test_two_nodes import harnesses, settled
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness

__all__ = ["harnesses"]

LEASE_MS = 20_000
WORKERS = [f"w{n}" for n in range(24)]


async def certificate(harness: ServerHarness, worker: str) -> DeathCertificate:
    response: Any = await harness.liveness.GetDeathCertificate(
        service_pb2.GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key=worker), timeout=10
    )
    return response


@pytest.fixture
async def nodes(harnesses: list[ServerHarness]) -> list[ServerHarness]:
    """Two nodes whose workers died at once; each node knows only its own deaths."""
    first, second, _ = harnesses
    await first.start(takeover_grace_ms=0)
    await second.start(takeover_grace_ms=0)
    await settled(first, second)
    await first.configure(
        storm_hold_ms=0
    )  # otherwise one node may learn of the other's deaths and hold its own expiries
    for index, worker in enumerate(WORKERS):
        host = f"db-{index % 2}"
        await first.beat(worker, session_id="s", sequence=1, lease_ms=LEASE_MS, host_name=host, build_id="b7")
    for harness in (first, second):
        await harness.advance(LEASE_MS)
    return [first, second]


def deaths_at(harness: ServerHarness) -> int:
    return harness.server.node.recent_deaths.count_last_minute(NAMESPACE)


def workers_of(harness: ServerHarness) -> list[str]:
    return [w for w in WORKERS if harness.server.node.serves(shard_of(NAMESPACE, w, SHARDS))]


async def test_every_node_counts_concurrent_deaths_over_all_nodes(nodes: list[ServerHarness]) -> None:
    assert all(0 < deaths_at(harness) < len(WORKERS) for harness in nodes)
    assert sum(map(deaths_at, nodes)) == len(WORKERS)
    for harness in nodes:
        for worker in WORKERS[:4]:
            company = (await certificate(harness, worker)).company
            assert (company.same_host, company.same_build, company.same_namespace) == (11, 23, 23)


async def test_deaths_of_an_unreachable_node_are_counted_too(nodes: list[ServerHarness]) -> None:
    first, second = nodes
    mine = workers_of(first)[0]
    await second.server._cluster_grpc.stop(None)
    assert (await certificate(first, mine)).company.same_namespace == len(WORKERS) - 1


async def test_the_current_owner_of_the_shard_serves_the_same_certificate(nodes: list[ServerHarness]) -> None:
    """The record survives the node that wrote it."""
    first, second = nodes
    moved = {worker: await certificate(first, worker) for worker in workers_of(first)}
    await first.stop()
    await settled(second)
    assert len(second.server.node.shards()) == SHARDS
    for worker, before in moved.items():
        assert await certificate(second, worker) == before
        assert before.company.same_namespace == len(WORKERS) - 1
