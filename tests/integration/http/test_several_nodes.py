"""Several nodes: the HTTP server of each node answers for all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liveness.domain.keys import shard_of
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.http.http_harness import HttpHarness
from tests.integration.http.test_event_streams import watching
from tests.integration.server.server_harness import SHARDS


@pytest.fixture
async def http_harnesses(
    postgres: PostgresServer, postgres_database: str
) -> AsyncIterator[tuple[HttpHarness, HttpHarness]]:
    first, second = (HttpHarness(postgres.url(postgres_database)) for _ in range(2))
    await first.open()
    await second.open()
    await settled(first.harness, second.harness)
    yield first, second
    await second.close()
    await first.close()


def worker_on(http_harness: HttpHarness) -> str:
    mine = owned(http_harness.harness)
    return next(key for key in map("w-{}".format, range(1_000)) if shard_of("orders", key, SHARDS) in mine)


async def test_any_node_answers_calls_about_workers_of_another(
    http_harnesses: tuple[HttpHarness, HttpHarness],
) -> None:
    first, second = http_harnesses
    key = worker_on(second)
    worker_path = f"/v1/namespaces/orders/workers/{key}"
    made = await first.client.post(f"{worker_path}/heartbeat", {"session_id": "s", "sequence": 2})
    assert made["outcome"] == "HEARTBEAT_OUTCOME_REGISTERED"
    assert (await first.client.get(worker_path)) == (await second.client.get(worker_path))
    code, reason, _ = await first.client.refused(
        "POST", f"{worker_path}/heartbeat", {"session_id": "s", "sequence": 1}
    )
    assert (code, reason) == (400, "STALE_HEARTBEAT")
    assert len((await first.client.get("/v1/nodes"))["nodes"]) == 2


async def test_a_watch_on_one_node_gets_events_of_another(
    http_harnesses: tuple[HttpHarness, HttpHarness],
) -> None:
    first, second = http_harnesses
    key = worker_on(second)
    async with watching(first.client) as source:
        await second.client.post(f"/v1/namespaces/orders/workers/{key}/heartbeat", {})
        assert await source.until(1) == [(key, "WorkerRegistered")]
