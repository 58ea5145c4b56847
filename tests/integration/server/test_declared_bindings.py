"""A worker that declares an activity which is finished or held by another worker is told to cancel it."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.v1 import worker_pb2
from liveness.v1.activity_pb2 import ACTIVITY_STATE_HANDED_ON as HANDED_ON
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import COMPLETED, QUEUE, STARTED, ActivityClient
from tests.integration.server.server_harness import RENEWED, ServerHarness


@pytest.fixture
async def client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


async def cancelled(client: ActivityClient, worker: str = "late", **fields: Any) -> list[str]:
    """Let the server check, send the worker's next heartbeat, and return what the answer cancels."""
    await client.harness.advance(100)
    result = await client.beat(worker, **fields)
    assert result.outcome == RENEWED
    return [ref.activity_id for ref in result.cancel_activities]


async def test_a_worker_that_binds_a_completed_activity_is_told(client: ActivityClient) -> None:
    await client.beat()
    await client.schedule("photo")
    await client.complete(await client.take())
    await client.beat("late", bound_activities=[activity("photo"), activity("of another engine")])
    assert await cancelled(client) == ["photo"]
    assert await cancelled(client) == ["photo"], "until it unbinds it"
    worker = await client.harness.describe("late")
    assert [ref.activity_id for ref in worker.bound_activities] == ["of another engine"]
    assert await cancelled(client, unbound_activities=[activity("photo")]) == []
    assert await client.state("photo") == COMPLETED


@pytest.mark.parametrize("way", ["failed", "cancelled"])
async def test_a_worker_that_binds_a_failed_or_cancelled_activity_is_told(
    client: ActivityClient, way: str
) -> None:
    await client.beat()
    await client.schedule("photo")
    if way == "failed":
        await client.fail(await client.take(), non_retryable=True)
    else:
        await client.cancel("photo")
    await client.beat("late", bound_activities=[activity("photo")])
    assert await cancelled(client) == ["photo"]


async def test_a_worker_that_binds_what_another_holds_is_told_and_the_holder_is_not(
    client: ActivityClient,
) -> None:
    await client.beat()
    task = await client.claim("photo")
    await client.beat("late", bound_activities=[activity("photo")])
    assert await cancelled(client) == ["photo"]
    assert await cancelled(client, "w", bound_activities=[activity("photo")]) == []
    held = await client.describe("photo")
    assert (held.state, held.worker_instance_key) == (STARTED, "w")
    await client.complete(task)


async def test_a_worker_that_declares_another_attempt_than_it_was_handed_keeps_its_own(
    client: ActivityClient,
) -> None:
    await client.beat("late")
    task = await client.claim("photo", "late")
    assert await cancelled(client, bound_activities=[activity("photo", attempt=7)]) == []
    await client.complete(task, "late")


async def test_the_first_heartbeat_of_a_session_is_checked_too(client: ActivityClient) -> None:
    await client.beat()
    await client.claim("photo")
    await client.beat("late")
    await client.harness.beat(
        "late", session_id="second", sequence=1, task_queue=QUEUE, bound_activities=[activity("photo")]
    )
    await client.harness.advance(100)
    result = await client.harness.beat("late", session_id="second", sequence=2, task_queue=QUEUE)
    assert [ref.activity_id for ref in result.cancel_activities] == ["photo"]


async def test_a_binding_to_an_activity_that_is_taken_later_is_found_with_the_lease_timer(
    client: ActivityClient,
) -> None:
    await client.beat("late", lease_duration={"seconds": 10}, bound_activities=[activity("photo")])
    await client.beat()
    await client.claim("photo")
    told: list[str] = []
    for _ in range(5):
        await client.harness.advance(4_000)
        told = await cancelled(client, lease_duration={"seconds": 10})
    assert told == ["photo"]


async def test_a_binding_that_was_not_checked_before_a_crash_is_found_after_it(
    client: ActivityClient,
) -> None:
    await client.beat()
    await client.schedule("photo")
    await client.complete(await client.take())
    await client.beat("late", lease_duration={"seconds": 10}, bound_activities=[activity("photo")])
    await client.harness.restart()  # no tick came since the heartbeat
    told: list[str] = []
    for _ in range(5):
        await client.harness.advance(4_000)
        told = await cancelled(client, lease_duration={"seconds": 10})
    assert told == ["photo"]


async def test_activities_of_other_namespaces_contradict_nothing(client: ActivityClient) -> None:
    await client.beat()
    await client.schedule("photo")
    await client.complete(await client.take())
    await client.harness.beat("late", namespace="billing", bound_activities=[activity("photo")])
    await client.harness.advance(100)
    result: worker_pb2.HeartbeatResult = await client.harness.beat("late", namespace="billing")
    assert not result.cancel_activities


class OtherEngine:
    """Takes every reschedule."""

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        pass


async def test_what_another_engine_took_may_be_bound_by_any_worker(stopped_harness: ServerHarness) -> None:
    client = ActivityClient(await stopped_harness.start(takeover_grace_ms=0, sink=OtherEngine()))
    await client.beat(bound_activities=[activity("photo")])
    await client.harness.expire("w")
    await client.harness.advance(1_000)
    assert await client.state("photo") == HANDED_ON
    await client.beat("late", bound_activities=[activity("photo", attempt=2)])
    assert await cancelled(client) == []
    assert (await client.harness.describe("late")).bound_activity_count == 1
