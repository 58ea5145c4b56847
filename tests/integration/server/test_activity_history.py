"""The history of an activity over gRPC on both databases."""

from __future__ import annotations

import json

import pytest

from liveness.v1 import activity_pb2 as pb
from tests.integration.engine.engine import duration
from tests.integration.server.activity_client import ActivityClient, activity_id
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal


@pytest.fixture
async def client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


async def history(
    client: ActivityClient, name: str = "a", namespace: str = NAMESPACE
) -> pb.GetActivityHistoryResponse:
    request = pb.GetActivityHistoryRequest(namespace=namespace, id=activity_id(name))
    answer: pb.GetActivityHistoryResponse = await client.harness.activities.GetActivityHistory(request)
    return answer


async def test_every_attempt_is_told_with_its_reason_and_survives_a_restart(client: ActivityClient) -> None:
    await client.beat(lease_duration=duration(60_000))
    await client.schedule("a")
    await client.schedule("b")
    first = await client.take()
    await client.heartbeat(first)
    await client.fail(first, message="disk full", stack_trace="File x.py, line 17", retry_after=duration(0))
    await client.harness.advance(500)
    while (second := await client.take()).id.activity_id != "a":
        pass
    await client.fail(second, message="again", non_retryable=True)
    request = pb.RetryActivityRequest(namespace=NAMESPACE, id=activity_id("a"), reason="disk was replaced")
    await client.harness.activities.RetryActivity(request)
    await client.cancel("a", reason="not needed")
    told = await history(client)
    assert [
        (attempt.attempt, attempt.outcome, attempt.message, attempt.stack_trace) for attempt in told.attempts
    ] == [
        (1, pb.ATTEMPT_OUTCOME_FAILED, "disk full", "File x.py, line 17"),
        (2, pb.ATTEMPT_OUTCOME_FAILED, "again", ""),
    ]
    assert told.attempts[0].HasField("last_heartbeat_time")
    kinds = [event.type for event in told.events]
    assert kinds[:2] == ["ActivityScheduled", "ActivityStarted"]
    assert kinds[-2:] == ["ActivityMadeAvailable", "ActivityCancelled"]
    assert "ActivityHeartbeatRecorded" not in kinds
    assert json.loads(told.events[-2].data_json)["reason"] == "disk was replaced"
    assert not told.is_cut
    await client.harness.restart()
    assert await history(client) == told
    assert {json.loads(event.data_json)["activity_id"] for event in (await history(client, "b")).events} == {
        "b"
    }


async def test_another_namespace_sees_nothing_of_it(client: ActivityClient) -> None:
    await client.schedule("a")
    await client.schedule("a", namespace="other")
    assert len((await history(client)).events) == 1
    assert len((await history(client, namespace="other")).events) == 1
    assert (await refusal(history(client, namespace="third"))).reason == "ACTIVITY_NOT_FOUND"


async def test_names_that_contain_each_other_are_told_apart(client: ActivityClient) -> None:
    for name in ('a"', 'a","x', "a", "%"):
        request = pb.ScheduleActivityRequest(
            namespace=NAMESPACE,
            id=pb.ActivityId(workflow_id="workflow-a", run_id="run", activity_id=name),
            task_queue="queue",
        )
        await client.harness.activities.ScheduleActivity(request)
    asked = pb.GetActivityHistoryRequest(
        namespace=NAMESPACE, id=pb.ActivityId(workflow_id="workflow-a", run_id="run", activity_id='a"')
    )
    [event] = (await client.harness.activities.GetActivityHistory(asked)).events
    assert json.loads(event.data_json)["activity_id"] == 'a"'


async def test_a_stack_trace_that_is_too_long_is_refused(client: ActivityClient) -> None:
    await client.beat(lease_duration=duration(60_000))
    await client.schedule("a")
    task = await client.take()
    refused = await refusal(client.fail(task, stack_trace="x" * (16 * 1024 + 1)))
    assert (refused.reason, "stack_trace" in refused.message) == ("INVALID_FIELD", True)
