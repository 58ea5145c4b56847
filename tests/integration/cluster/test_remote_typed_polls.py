"""Activities of several types on one node, the workers that poll for one type each on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.databases import PostgresServer
from tests.integration.cluster.test_remote_ownership import Site, start_site, stop_site
from tests.integration.server.activity_client import QUEUE
from tests.integration.server.server_harness import NAMESPACE


@pytest.fixture
async def site(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Site]:
    site = await start_site(postgres.url(postgres_database))
    yield site
    await stop_site(site)


async def offered(site: Site, *types: str) -> None:
    """Wait until the worker's node knows of activities of these types on the other node."""
    matching = site.worker_node.server.matching
    while not all(
        (queue := matching._queues.get((NAMESPACE, QUEUE)))
        and queue.remote_offers.first_address(frozenset({name}))
        for name in types
    ):
        await asyncio.sleep(0)


async def test_a_remote_activity_is_handed_to_a_poll_for_its_type_only(site: Site) -> None:
    await site.beat()
    mail, resize, later = (site.activity_name(at) for at in range(3))
    await site.client.schedule(mail, activity_type="mail")
    await site.client.schedule(resize, activity_type="resize")
    await offered(site, "mail", "resize")
    [task] = await site.client.poll(site.worker, activity_types=["resize", "crop"], max_activities=10)
    assert task.id.activity_id == resize
    # That fetch brought fewer activities than it could have; the offers of other types still stand.
    assert await site.client.poll(site.worker, activity_types=["resize"]) == []
    [task] = await site.client.poll(site.worker, activity_types=["mail"], max_activities=10)
    assert (task.id.activity_id, task.attempt) == (mail, 1)
    waiting = asyncio.ensure_future(site.client.take(site.worker, activity_types=["resize"]))
    await site.client.schedule(later, activity_type="resize")
    assert (await waiting).id.activity_id == later


async def test_a_poll_without_types_is_handed_remote_activities_of_all_types(site: Site) -> None:
    await site.beat()
    names = [site.activity_name(at) for at in range(3)]
    for name in names:
        await site.client.schedule(
            name, activity_type=f"type-{name}", input=b"1", input_encoding="json/plain"
        )
    await offered(site, *(f"type-{name}" for name in names))
    tasks = await site.client.poll(site.worker, max_activities=10)
    assert [task.id.activity_id for task in tasks] == names
    assert {task.input_encoding for task in tasks} == {"json/plain"}
