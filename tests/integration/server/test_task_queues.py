"""Task queues and changes of many activities at once, over gRPC on both databases, and on two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liveness.v1 import activity_pb2 as pb
from tests.databases import PostgresServer
from tests.integration.cluster.test_remote_ownership import Site, start_site, stop_site
from tests.integration.engine.engine import duration
from tests.integration.server.activity_client import AVAILABLE, CANCELLED, FAILED, ActivityClient
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal


@pytest.fixture
async def client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


@pytest.fixture
async def site(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Site]:
    site = await start_site(postgres.url(postgres_database))
    yield site
    await stop_site(site)


async def queues(harness: ServerHarness, namespace: str = NAMESPACE) -> dict[str, pb.TaskQueue]:
    request = pb.ListTaskQueuesRequest(namespace=namespace)
    answer = await harness.activities.ListTaskQueues(request)
    return {queue.task_queue: queue for queue in answer.task_queues}


async def bulk(client: ActivityClient, action: int, **fields: Any) -> pb.BulkUpdateActivitiesResponse:
    request = pb.BulkUpdateActivitiesRequest(namespace=NAMESPACE, action=action, **fields)  # type: ignore[arg-type]
    answer: pb.BulkUpdateActivitiesResponse = await client.harness.activities.BulkUpdateActivities(request)
    return answer


async def test_a_queue_tells_what_waits_who_polls_and_how_fast_it_moves(client: ActivityClient) -> None:
    await client.beat(lease_duration=duration(60_000))
    for name in "abcd":
        await client.schedule(name)
    await client.schedule("late", start_delay=duration(60_000))
    await client.schedule("other", namespace="elsewhere")
    await client.harness.advance(3_000)
    await client.complete(await client.take())
    await client.fail(await client.take(), non_retryable=True)
    held = await client.take()
    waiting = asyncio.ensure_future(client.take(task_queue="idle"))
    while "idle" not in await queues(client.harness):
        await asyncio.sleep(0)
    found = await queues(client.harness)
    queue = found["queue"]
    assert (queue.available, queue.waiting, queue.held) == (1, 1, 1)
    assert queue.oldest == duration(3_000)
    assert (queue.added_per_minute, queue.started_per_minute) == (5, 3)
    assert (queue.completed_per_minute, queue.failed_per_minute) == (1, 1)
    assert (found["idle"].polls, found["idle"].pollers, found["idle"].available) == (1, 1, 0)
    assert not found["idle"].HasField("oldest")
    assert set(await queues(client.harness, "elsewhere")) == {"queue"}
    assert await queues(client.harness, "nobody") == {}
    await client.schedule("x", task_queue="idle")
    await waiting
    await client.release(held)
    await client.harness.advance(61_000)
    assert (await queues(client.harness))["queue"].started_per_minute == 0


async def test_the_queues_of_all_nodes_are_added_up(site: Site) -> None:
    await site.beat()
    far = [site.activity_name(at) for at in range(3)]
    for name in far:
        await site.client.schedule(name, task_queue="far")
    for name in map(str, range(20)):  # on both nodes
        if name not in far:
            await site.client.schedule(name, task_queue="far")
    total = len({*far, *map(str, range(20))})
    waiting = asyncio.ensure_future(site.client.poll(site.worker, task_queue="polled", wait_ms=60_000))
    while "polled" not in (found := await queues(site.activity_node)):
        await asyncio.sleep(0)
    assert (found["far"].available, found["polled"].pollers) == (total, 1)
    assert (await queues(site.worker_node))["far"].available == total
    waiting.cancel()


async def fail_all(client: ActivityClient, *names: str) -> None:
    for name in names:
        await client.schedule(name, activity_type="resize" if name.startswith("r") else "mail")
        await client.fail(await client.take(), non_retryable=True)


async def test_a_preview_changes_nothing_and_the_change_does_what_it_showed(client: ActivityClient) -> None:
    await client.beat(lease_duration=duration(60_000))
    await fail_all(client, "r1", "r2", "m1")
    await client.schedule("done")
    await client.complete(await client.take())
    where = pb.ActivityFilter(activity_type="resize")
    preview = await bulk(client, pb.BULK_ACTION_RETRY, filter=where, preview=True)
    assert (preview.matched, preview.changed) == (2, 2)
    assert [example.id.activity_id for example in preview.examples] == ["r1", "r2"]
    assert await client.state("r1") == FAILED
    done = await bulk(client, pb.BULK_ACTION_RETRY, filter=where, reason="fixed in v7")
    assert (done.matched, done.changed, done.refused, done.next_page_token) == (2, 2, 0, "")
    assert [await client.state(name) for name in ("r1", "r2", "m1")] == [AVAILABLE, AVAILABLE, FAILED]
    cancelled = await bulk(
        client, pb.BULK_ACTION_CANCEL, filter=pb.ActivityFilter(workflow_id_prefix="workflow-r")
    )
    assert cancelled.changed == 2
    assert await client.state("r2") == CANCELLED
    assert (await bulk(client, pb.BULK_ACTION_CANCEL)).matched == 0, "what is finished is left alone"


async def test_many_activities_are_changed_in_several_calls(client: ActivityClient) -> None:
    for number in range(203):
        await client.schedule(f"{number:03d}")
    first = await bulk(client, pb.BULK_ACTION_CANCEL)
    assert (first.changed, len(first.examples)) == (200, 10)
    rest = await bulk(client, pb.BULK_ACTION_CANCEL, page_token=first.next_page_token)
    assert (rest.changed, rest.next_page_token) == (3, "")


async def test_activities_of_another_node_are_changed_too(site: Site) -> None:
    names = [site.activity_name(at) for at in range(3)]
    for name in names:
        await site.client.schedule(name)
    via = ActivityClient(site.worker_node)
    assert (await bulk(via, pb.BULK_ACTION_CANCEL, reason="not needed")).changed == 3
    assert {await site.client.state(name) for name in names} == {CANCELLED}


async def test_filters_choose_by_type_and_prefix_literally(client: ActivityClient) -> None:
    for name, kind in (("a", 'x"y'), ("b", "x"), ("c", "x%"), ("d", "")):
        await client.schedule(name, activity_type=kind, input=b'"type":"x"')
    for kind, found in (("x", ["b"]), ("x%", ["c"]), ('x"y', ["a"]), ("", ["a", "b", "c", "d"])):
        listed = await client.listed(filter=pb.ActivityFilter(activity_type=kind))
        assert [activity.id.activity_id for activity in listed.activities] == found, kind
    listed = await client.listed(filter=pb.ActivityFilter(workflow_id_prefix="workflow-b"))
    assert [activity.id.activity_id for activity in listed.activities] == ["b"]
    assert not (await client.listed(filter=pb.ActivityFilter(workflow_id_prefix="%"))).activities


async def test_a_bulk_change_without_an_action_or_a_fitting_state_is_refused(client: ActivityClient) -> None:
    await client.schedule("a")
    assert "must be BULK_ACTION_RETRY" in (await refusal(bulk(client, pb.BULK_ACTION_UNSPECIFIED))).message
    wrong = bulk(client, pb.BULK_ACTION_RETRY, filter=pb.ActivityFilter(states=[AVAILABLE]))
    assert "no state that the action applies to" in (await refusal(wrong)).message
    assert await client.state("a") == AVAILABLE
