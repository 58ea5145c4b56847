"""A running node whose tables another node migrates, so that its version must not write to them any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from liveness.server.health import READINESS
from liveness.store.errors import WrittenByNewerVersion
from liveness.store.sql import SqlStore
from liveness.v1 import admin_pb2
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.server.server_harness import RENEWED, SHARDS, ServerHarness
from tests.integration.store.next_version import write_migrations


@pytest.fixture
async def nodes(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[list[ServerHarness]]:
    started = [await ServerHarness(postgres.url(postgres_database)).start() for _ in range(2)]
    yield started
    for harness in started:
        await harness.stop()


async def readiness(harness: ServerHarness) -> int:
    health: Any = health_pb2_grpc.HealthStub(harness.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service=READINESS))
    status: int = answer.status
    return status


async def test_a_node_too_old_for_the_tables_is_not_ready_and_leaves_its_shards_to_newer_nodes(
    nodes: list[ServerHarness], tmp_path: Path
) -> None:
    old, upgraded = nodes
    await settled(old, upgraded)
    for number in range(20):
        await old.beat(f"w{number}")
    assert await readiness(old) == health_pb2.HealthCheckResponse.SERVING
    await upgraded.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            SqlStore.__init__, "__defaults__", (write_migrations(tmp_path / "migrations", statement=""),)
        )
        await upgraded.start()
    await old.server.membership.refresh()
    assert await readiness(old) == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(WrittenByNewerVersion):
        await old.server.node.open()
    # Its next commit tells it that it has lost its shards.
    for shard in old.server.node.shards():
        old.server.node.committer.mark_dirty(shard)
    await old.server.node.barrier().wait()
    for _ in range(3):
        for harness in (old, upgraded):
            await harness.server.membership.refresh()
            await harness.server.membership.wait_for_rebalancing()
    assert not owned(old)
    assert owned(upgraded) == set(range(SHARDS))
    listed = (await upgraded.admin.ListNodes(admin_pb2.ListNodesRequest())).nodes
    states = {node.node_id: node.state for node in listed}
    assert states[old.server.node.owner] == admin_pb2.NODE_STATE_LEAVING
    assert (await old.beat("w1")).outcome == RENEWED, "it still forwards calls"
