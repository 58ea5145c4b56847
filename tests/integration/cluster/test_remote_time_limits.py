"""Time limits of an activity on one node, whose worker is on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.databases import PostgresServer
from tests.integration.cluster.test_remote_ownership import Site, start_site, stop_site
from tests.integration.engine.engine import duration
from tests.integration.server.activity_client import QUEUE, STARTED, WAITING
from tests.integration.server.server_harness import refusal
from tests.integration.server.test_time_limits import timeouts


@pytest.fixture
async def site(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Site]:
    site = await start_site(postgres.url(postgres_database))
    yield site
    await stop_site(site)


async def test_a_remote_attempt_that_runs_too_long_is_taken_from_its_worker(site: Site) -> None:
    await site.beat()
    name = site.activity_name()
    task = await site.client.claim(
        name, site.worker, task_queue=QUEUE, timeouts=timeouts(start_to_close=3_000, heartbeat=2_000)
    )
    await site.activity_node.advance(1_500)
    await site.client.heartbeat(task, site.worker, details=b"17")
    await site.activity_node.advance(1_000)
    assert await site.client.state(name) == STARTED
    await site.activity_node.advance(1_000)
    left = await site.client.describe(name)
    assert (left.state, left.heartbeat_details, left.failures) == (WAITING, b"17", 1)
    assert (await refusal(site.client.heartbeat(task, site.worker))).reason == "FENCED_OFF"
    while site.known_worker().bindings:  # unbound in the background
        await asyncio.sleep(0)
    told = await site.beat()
    assert [ref.activity_id for ref in told.cancel_activities] == [name]  # type: ignore[attr-defined]


async def test_a_remote_holder_is_told_its_limits_and_the_last_details(site: Site) -> None:
    await site.beat()
    name = site.activity_name()
    limits = timeouts(start_to_close=60_000, heartbeat=30_000)
    await site.client.schedule(name, timeouts=limits)
    task = await site.client.take(site.worker)
    assert (task.start_to_close_timeout, task.heartbeat_timeout) == (duration(60_000), duration(30_000))
    await site.client.heartbeat(task, site.worker, details=b"17", details_encoding="json/plain")
    await site.client.release(task, site.worker)
    again = await site.client.take(site.worker)
    assert (again.heartbeat_details, again.heartbeat_details_encoding) == (b"17", "json/plain")
