"""Time limits of activities over gRPC on both databases: what is over, what happens then, and what does not count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liveness.v1 import activity_pb2 as pb
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import (
    AVAILABLE,
    COMPLETED,
    FAILED,
    QUARANTINED,
    STARTED,
    WAITING,
    ActivityClient,
)
from tests.integration.server.server_harness import ServerHarness, refusal

GRACE_MS = 5_000


@pytest.fixture
async def activity_client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


def timeouts(**ms: int) -> pb.ActivityTimeouts:
    return pb.ActivityTimeouts(**{f"{name}_timeout": duration(value) for name, value in ms.items()})


async def advance(client: ActivityClient, ms: int, step_ms: int = 500) -> None:
    """Let time pass, while the worker's lease goes on."""
    while ms > 0:
        await client.beat(lease_duration=duration(60_000))
        await client.harness.advance(min(ms, step_ms))
        ms -= step_ms


async def take_limited(client: ActivityClient, **ms: int) -> pb.ActivityTask:
    """An attempt with limits, which its worker has confirmed."""
    await client.beat(lease_duration=duration(60_000))
    await client.schedule("a", timeouts=timeouts(**ms))
    return await take_confirmed(client)


async def take_confirmed(client: ActivityClient) -> pb.ActivityTask:
    task = await client.take()
    await client.beat(bound_activities=[activity(task.id.activity_id, task.attempt)])
    return task


async def test_an_attempt_that_runs_too_long_is_taken_from_its_live_worker_and_tried_again(
    activity_client: ActivityClient,
) -> None:
    task = await take_limited(activity_client, start_to_close=10_000)
    assert task.start_to_close_timeout == duration(10_000)
    await advance(activity_client, 9_500)
    assert await activity_client.state("a") == STARTED
    await advance(activity_client, 1_000)
    left = await activity_client.describe("a")
    assert (left.state, left.failures, left.worker_deaths) == (WAITING, 1, 0)
    assert left.timeout_type == pb.TIMEOUT_TYPE_START_TO_CLOSE
    assert left.last_failure == (
        "start_to_close of 10 s is over: attempt 1 on worker w was still running, and the worker alive; it is tried again"
    )
    told = await activity_client.beat()
    assert [ref.activity_id for ref in told.cancel_activities] == ["a"]
    assert (await refusal(activity_client.complete(task))).reason == "FENCED_OFF"
    await advance(activity_client, 1_500)
    again = await activity_client.take()
    assert (again.attempt, again.failures) == (2, 1)
    await activity_client.complete(again)
    done = await activity_client.describe("a")
    assert (done.state, done.timeout_type) == (COMPLETED, pb.TIMEOUT_TYPE_UNSPECIFIED)


async def test_an_attempt_without_heartbeats_is_taken_and_its_details_reach_the_next(
    activity_client: ActivityClient,
) -> None:
    task = await take_limited(activity_client, heartbeat=2_000)
    for rows in range(4):
        await advance(activity_client, 1_500)
        await activity_client.heartbeat(task, details=f"{rows}".encode(), details_encoding="json/plain")
    held = await activity_client.describe("a")
    assert (held.state, held.heartbeat_details, held.next_timeout_type) == (
        STARTED,
        b"3",
        pb.TIMEOUT_TYPE_HEARTBEAT,
    )
    await activity_client.heartbeat(task)
    assert (await activity_client.describe("a")).heartbeat_details == b"3", "no details keep the last ones"
    await advance(activity_client, 2_500)
    left = await activity_client.describe("a")
    assert (left.state, left.timeout_type) == (WAITING, pb.TIMEOUT_TYPE_HEARTBEAT)
    assert (await refusal(activity_client.heartbeat(task))).reason == "FENCED_OFF"
    await advance(activity_client, 1_500)
    again = await activity_client.take()
    assert (again.heartbeat_details, again.heartbeat_details_encoding) == (b"3", "json/plain")


async def test_details_that_come_with_a_failure_reach_the_next_attempt(
    activity_client: ActivityClient,
) -> None:
    task = await take_limited(activity_client, start_to_close=60_000)
    await activity_client.fail(task, last_heartbeat_details=b"17")
    await advance(activity_client, 1_500)
    assert (await activity_client.take()).heartbeat_details == b"17"


async def test_the_details_of_an_attempt_whose_worker_died_reach_the_next(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat(lease_duration=duration(1_000))
    await activity_client.schedule("a", timeouts=timeouts(heartbeat=60_000))
    task = await activity_client.take()
    await activity_client.heartbeat(task, details=b"17")
    await activity_client.harness.advance(3_000)
    await activity_client.beat("other")
    again = await activity_client.take("other")
    assert (again.attempt, again.heartbeat_details) == (2, b"17")


async def test_an_attempt_is_not_tried_again_beyond_its_retry_policy(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat(lease_duration=duration(60_000))
    await activity_client.schedule(
        "a", timeouts=timeouts(start_to_close=1_000), retry_policy=pb.RetryPolicy(maximum_attempts=1)
    )
    await activity_client.take()
    await advance(activity_client, 2_000)
    left = await activity_client.describe("a")
    assert (left.state, left.failures) == (FAILED, 1)
    assert left.last_failure.endswith("; no attempt is left")


async def test_an_activity_that_no_worker_takes_in_time_fails(activity_client: ActivityClient) -> None:
    await activity_client.schedule(
        "a", timeouts=timeouts(schedule_to_start=3_000), start_delay=duration(2_000)
    )
    await advance(activity_client, 4_500)
    assert await activity_client.state("a") == AVAILABLE
    await advance(activity_client, 1_000)
    left = await activity_client.describe("a")
    assert (left.state, left.timeout_type, left.failures) == (FAILED, pb.TIMEOUT_TYPE_SCHEDULE_TO_START, 0)
    assert left.last_failure == (
        "schedule_to_start of 3 s is over: no worker took the activity in time; the activity failed"
    )
    assert await activity_client.poll() == []


@pytest.mark.parametrize("state", [AVAILABLE, WAITING, STARTED])
async def test_an_activity_that_is_not_finished_in_time_fails_in_every_state(
    activity_client: ActivityClient, state: int
) -> None:
    await activity_client.beat(lease_duration=duration(60_000))
    await activity_client.schedule("a", timeouts=timeouts(schedule_to_close=20_000))
    if state != AVAILABLE:
        task = await take_confirmed(activity_client)
        if state == WAITING:
            await activity_client.fail(task, retry_after=duration(19_000))
    await advance(activity_client, 19_900 if state == STARTED else 10_000)
    assert await activity_client.state("a") == state
    await advance(activity_client, 11_000)
    left = await activity_client.describe("a")
    if state == WAITING:  # it became available again, and nobody took it
        assert left.last_failure.endswith("attempt 2 was waiting for a worker; the activity failed")
    assert (left.state, left.timeout_type) == (FAILED, pb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE)
    if state == STARTED:
        told = await activity_client.beat()
        assert [ref.activity_id for ref in told.cancel_activities] == ["a"]
    assert await activity_client.retry("a") == AVAILABLE
    await advance(activity_client, 19_000)
    assert await activity_client.state("a") == AVAILABLE, "a fresh start has the whole time again"


async def test_a_retry_that_would_come_too_late_is_not_waited_for(activity_client: ActivityClient) -> None:
    task = await take_limited(activity_client, schedule_to_close=5_000)
    answer = await activity_client.fail(task, retry_after=duration(6_000))
    assert answer.state == FAILED


async def test_time_without_a_server_does_not_count(activity_client: ActivityClient) -> None:
    task = await take_limited(activity_client, start_to_close=10_000, schedule_to_close=60_000)
    await advance(activity_client, 8_000)
    harness = activity_client.harness
    await harness.stop()
    harness.clock.move(3_600_000)
    await harness.start(takeover_grace_ms=0)
    await advance(activity_client, 1_500)
    assert await activity_client.state("a") == STARTED
    await advance(activity_client, 900)
    assert await activity_client.state("a") == WAITING
    assert task.attempt == 1


async def test_a_limit_that_is_over_after_a_restart_waits_for_the_grace(
    stopped_harness: ServerHarness,
) -> None:
    """The worker could not say that it is at work, nor that it is done, while nobody listened."""
    client = ActivityClient(await stopped_harness.start(takeover_grace_ms=GRACE_MS))
    await client.beat(lease_duration=duration(60_000))
    await advance(client, GRACE_MS + 500)
    task = await take_limited(client, heartbeat=2_000)
    await advance(client, 1_900)
    await stopped_harness.restart()
    await advance(client, GRACE_MS - 1_000)
    assert await client.state("a") == STARTED
    await client.heartbeat(task)
    await advance(client, 1_900)
    assert await client.state("a") == STARTED, "the limit counts from the heartbeat again"
    await advance(client, 1_000)
    assert await client.state("a") == WAITING


async def test_a_quarantined_activity_has_no_time_limits(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_duration=duration(1_000))
    await activity_client.schedule(
        "a", timeouts=timeouts(schedule_to_close=10_000), retry_policy=pb.RetryPolicy(maximum_worker_deaths=1)
    )
    await activity_client.take()
    await activity_client.harness.advance(3_000)
    while await activity_client.state("a") != QUARANTINED:  # by the queue of reschedules
        await asyncio.sleep(0)
    await activity_client.harness.advance(30_000)
    assert await activity_client.state("a") == QUARANTINED


async def test_a_claimed_activity_has_limits_too(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_duration=duration(60_000))
    claimed: dict[str, Any] = {"task_queue": "queue", "timeouts": timeouts(start_to_close=2_000)}
    await activity_client.claim("a", **claimed)
    assert (await activity_client.claim("a", **claimed)).attempt == 1
    await advance(activity_client, 2_500)
    assert await activity_client.state("a") == WAITING


async def test_the_same_activity_with_other_limits_is_refused(activity_client: ActivityClient) -> None:
    await activity_client.schedule("a", timeouts=timeouts(heartbeat=2_000))
    assert not (await activity_client.schedule("a", timeouts=timeouts(heartbeat=2_000))).created
    refused = await refusal(activity_client.schedule("a"))
    assert (refused.reason, "other time limits" in refused.message) == ("ACTIVITY_DIFFERS", True)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"start_to_close": 0}, "timeouts.start_to_close_timeout must be more than zero"),
        ({"heartbeat": -1_000}, "timeouts.heartbeat_timeout must not be negative"),
        ({"schedule_to_close": 10**16}, "timeouts.schedule_to_close_timeout must be at most 100 years"),
    ],
)
async def test_a_bad_limit_is_refused_and_schedules_nothing(
    activity_client: ActivityClient, limits: dict[str, Any], message: str
) -> None:
    refused = await refusal(activity_client.schedule("a", timeouts=timeouts(**limits)))
    assert (refused.reason, message in refused.message) == ("INVALID_FIELD", True), refused.message
    assert (await refusal(activity_client.describe("a"))).reason == "ACTIVITY_NOT_FOUND"


async def test_details_that_are_too_large_are_refused_and_do_not_count_as_a_heartbeat(
    activity_client: ActivityClient,
) -> None:
    task = await take_limited(activity_client, heartbeat=2_000)
    refused = await refusal(activity_client.heartbeat(task, details=b"x" * (16 * 1024 + 1)))
    assert refused.reason == "INVALID_FIELD"
    assert not (await activity_client.describe("a")).HasField("last_heartbeat_time")


async def test_a_heartbeat_of_somebody_else_is_refused(activity_client: ActivityClient) -> None:
    task = await take_limited(activity_client, heartbeat=2_000)
    await activity_client.beat("other")
    assert (await refusal(activity_client.heartbeat(task, "other"))).reason == "FENCED_OFF"
    assert (await refusal(activity_client.heartbeat(task, lease_epoch=2))).reason == "FENCED_OFF"
    assert (await refusal(activity_client.heartbeat(task, attempt=2))).reason == "FENCED_OFF"
