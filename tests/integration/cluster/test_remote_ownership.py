"""Activities on one node, their worker on the other: two nodes on one PostgreSQL.

A call about an activity is served by the activity's node, which asks the worker's node for the worker's side. The rules
are those of a single node: tests/integration/server/test_activities.py and tests/integration/backup/test_restore.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from liveness.clock import ManualClock
from liveness.domain.keys import WorkerKey, shard_of
from liveness.domain.worker import Worker
from liveness.engine.restore import RestoreSummary, begin_new_history
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.v1 import activity_pb2, worker_pb2
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import (
    AVAILABLE,
    COMPLETED,
    QUEUE,
    STARTED,
    ActivityClient,
    activity_id,
)
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, refusal

LEASE_MS = 60_000


class Site(NamedTuple):
    """Two nodes, and a worker whose shard is on the first."""

    worker_node: ServerHarness
    activity_node: ServerHarness
    client: ActivityClient
    """Its calls enter at the activities' node."""
    worker: str

    def activity_name(self, at: int = 0) -> str:
        """A name whose shard is on the activities' node."""
        names = [str(number) for number in range(1_000)]
        return [
            name for name in names if _shard_id(activity_id(name).workflow_id) in owned(self.activity_node)
        ][at]

    async def beat(self) -> activity_pb2.ActivityTask:
        answer: activity_pb2.ActivityTask = await self.client.beat(
            self.worker, lease_duration={"seconds": LEASE_MS // 1_000}
        )
        return answer

    def known_worker(self) -> Worker:
        return self.worker_node.server.node.shard(NAMESPACE, self.worker).workers[
            WorkerKey(NAMESPACE, self.worker)
        ]


def _shard_id(name: str) -> int:
    return shard_of(NAMESPACE, name, SHARDS)


async def start_site(url: str) -> Site:
    first, second = ServerHarness(url), ServerHarness(url)
    await first.start(takeover_grace_ms=0)
    await second.start(takeover_grace_ms=0)
    await settled(first, second)
    while not (owned(first) and owned(second)):  # where shards belong depends on the ports
        await second.restart()
        await settled(first, second)
    worker = next(f"w{n}" for n in range(1_000) if _shard_id(f"w{n}") in owned(first))
    return Site(first, second, ActivityClient(second), worker)


async def stop_site(site: Site) -> None:
    await site.worker_node.stop()
    await site.activity_node.stop()


@pytest.fixture
async def site(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[Site]:
    site = await start_site(postgres.url(postgres_database))
    yield site
    await stop_site(site)


async def restored_history(url: str) -> RestoreSummary:
    """What `liveness restore` does to a PostgreSQL that its own tools put back."""
    store = SqlStore(PostgresDatabase(url))
    await store.open(SHARDS, "tests")
    restored = await begin_new_history(store, SHARDS, ManualClock(), 0, lambda *_: None)
    await store.close()
    return restored


@pytest.mark.parametrize("way", ["claimed", "claimed as scheduled", "polled"])
async def test_an_attempt_for_a_remote_worker_is_not_below_the_token_floor_after_a_restore(
    postgres: PostgresServer, postgres_database: str, way: str
) -> None:
    """A token below the floor may equal one that was given out between the backup and its restore."""
    url = postgres.url(postgres_database)
    harness = await ServerHarness(url).start()
    for number in range(30):
        await ActivityClient(harness).schedule(str(number))
    await harness.stop()
    restored = await restored_history(url)
    site = await start_site(url)
    try:
        await site.beat()
        if way == "polled":
            [task] = await site.client.poll(site.worker, max_activities=1)
            remote = _shard_id(task.id.workflow_id) in owned(site.activity_node)
            while not remote:
                [task] = await site.client.poll(site.worker, max_activities=1)
                remote = _shard_id(task.id.workflow_id) in owned(site.activity_node)
        else:
            name = site.activity_name(0 if way == "claimed as scheduled" else 100)
            task = await site.client.claim(name, site.worker, task_queue=QUEUE)
        assert (task.lease_epoch, task.attempt) == (restored.token_floor, restored.token_floor)
        held = site.known_worker().bindings
        assert restored.token_floor in {bound.attempt for bound in held.values()}
        await site.client.complete(task, site.worker)
        assert await site.client.state(task.id.activity_id) == COMPLETED
        assert task.id.activity_id not in {
            bound.activity_id for bound in site.known_worker().bindings.values()
        }
    finally:
        await stop_site(site)


async def test_a_remote_claim_that_is_repeated_is_answered_alike(site: Site) -> None:
    await site.beat()
    name = site.activity_name()
    first = await site.client.claim(name, site.worker, task_queue=QUEUE)
    assert await site.client.claim(name, site.worker, task_queue=QUEUE) == first
    await site.client.complete(first, site.worker)


async def test_remote_claims_of_one_worker_at_once_hold_the_same_attempt(site: Site) -> None:
    """Neither takes the binding of the other away."""
    await site.beat()
    names = [site.activity_name(at) for at in range(20)]
    tasks = await asyncio.gather(
        *(site.client.claim(name, site.worker, task_queue=QUEUE) for name in names for _ in range(4))
    )
    assert {(task.lease_epoch, task.attempt) for task in tasks} == {(1, 1)}
    for task in tasks[::4]:
        await site.client.complete(task, site.worker)


async def test_a_session_that_is_not_current_cannot_claim_what_its_remote_worker_holds(site: Site) -> None:
    await site.beat()
    name = site.activity_name()
    await site.client.claim(name, site.worker, task_queue=QUEUE, session_id=f"session-{site.worker}")
    refused = await refusal(site.client.claim(name, site.worker, task_queue=QUEUE, session_id="another"))
    assert refused.reason == "SESSION_NOT_CURRENT"


async def test_a_claim_by_a_dead_remote_worker_leaves_the_activity_to_its_reschedule(site: Site) -> None:
    """Taking the activity back here would hide the death, which is what the reschedule counts."""
    await site.beat()
    name = site.activity_name()
    await site.client.claim(name, site.worker, task_queue=QUEUE)
    await site.worker_node.expire(site.worker)
    refused = await refusal(site.client.claim(name, site.worker, task_queue=QUEUE))
    assert refused.reason == "WORKER_NOT_ACTIVE"
    assert (await site.client.describe(name)).attempt == 1
    await site.activity_node.server.queue.run_until_idle()
    assert await site.client.state(name) == AVAILABLE
    assert (await site.client.describe(name)).attempt == 2


async def test_a_remote_worker_that_fails_or_releases_an_attempt_is_not_bound_to_it_any_more(
    site: Site,
) -> None:
    await site.beat()
    released, failed, cancelled = (site.activity_name(at) for at in range(3))
    await site.client.release(await site.client.claim(released, site.worker, task_queue=QUEUE), site.worker)
    assert await site.client.state(released) == AVAILABLE
    await site.client.fail(await site.client.claim(failed, site.worker, task_queue=QUEUE), site.worker)
    assert not site.known_worker().bindings
    await site.client.claim(cancelled, site.worker, task_queue=QUEUE)
    assert await site.client.state(cancelled) == STARTED
    assert await site.client.cancel(cancelled)
    assert not site.known_worker().bindings


async def test_an_attempt_that_outlives_the_session_of_its_remote_worker_shows_the_epoch_that_may_end_it(
    site: Site,
) -> None:
    await site.beat()
    name = site.activity_name()
    task = await site.client.claim(name, site.worker, task_queue=QUEUE)
    bound = worker_pb2.ActivityRef(
        workflow_id=task.id.workflow_id, run_id=task.id.run_id, activity_id=name, attempt=task.attempt
    )
    await site.worker_node.beat(
        site.worker, session_id="second", sequence=1, task_queue=QUEUE, bound_activities=[bound]
    )
    for node in (site.activity_node, site.worker_node):
        client = ActivityClient(node)
        [listed] = (await client.listed()).activities
        assert [(await client.describe(name)).lease_epoch, listed.lease_epoch] == [2, 2]
    claimed = await site.client.claim(name, site.worker, task_queue=QUEUE)
    assert (claimed.lease_epoch, claimed.attempt) == (2, task.attempt)
    assert (await refusal(site.client.complete(task, site.worker))).reason == "FENCED_OFF"
    await site.client.complete(claimed, site.worker)


@pytest.mark.parametrize("way", ["finished", "held"])
async def test_a_worker_that_binds_what_is_finished_or_held_on_another_node_is_told(
    site: Site, way: str
) -> None:
    await site.beat()
    await site.client.beat("holder", lease_duration={"seconds": LEASE_MS // 1_000})
    name = site.activity_name()
    task = await site.client.claim(name, "holder", task_queue=QUEUE)
    if way == "finished":
        await site.client.complete(task, "holder")
    await site.client.beat(
        site.worker, lease_duration={"seconds": LEASE_MS // 1_000}, bound_activities=[activity(name)]
    )
    await site.worker_node.advance(100)
    told = await site.client.beat(site.worker)
    assert [ref.activity_id for ref in told.cancel_activities] == [name]
    assert not site.known_worker().bindings
    if way == "held":
        await site.client.complete(task, "holder")
