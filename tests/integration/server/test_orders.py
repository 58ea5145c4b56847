"""Pause, resume and drain: orders in heartbeat replies, their effect on hand-outs, and their persistence."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from liveness.v1 import worker_pb2
from liveness.v1.service_pb2 import WorkerFilter
from tests.integration.server.activity_client import AVAILABLE, STARTED, ActivityClient
from tests.integration.server.server_harness import ACTIVE, INACTIVE, ServerHarness, refusal


@pytest.fixture
async def activity_client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


async def test_a_paused_worker_is_told_so_keeps_its_lease_and_gets_no_new_work(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("held")
    held = await activity_client.take()
    assert await activity_client.pause("w", reason="maintenance") == 1
    await activity_client.schedule("new")
    assert await activity_client.poll() == []
    assert (await activity_client.beat()).pause is True
    await activity_client.complete(held)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.paused) == (ACTIVE, True)
    assert (await refusal(activity_client.claim("other"))).reason == "WORKER_PAUSED"


async def test_resuming_answers_a_poll_that_is_waiting(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.pause("w")
    await activity_client.schedule("a")
    waiting = asyncio.ensure_future(activity_client.take())
    while not activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    assert await activity_client.resume("w") == 1
    assert (await waiting).attempt == 1
    assert (await activity_client.beat()).pause is False


async def test_resuming_a_namespace_answers_polls_that_are_waiting(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.pause(all=True)
    await activity_client.schedule("a")
    waiting = asyncio.ensure_future(activity_client.take())
    while not activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    assert not waiting.done()
    await activity_client.resume(all=True)
    assert (await waiting).attempt == 1


async def test_a_paused_namespace_pauses_workers_that_register_later(activity_client: ActivityClient) -> None:
    await activity_client.beat("early")
    assert await activity_client.pause(all=True) == 1
    assert (await activity_client.beat("early")).pause is True
    assert (await activity_client.beat("late")).pause is True
    assert (await activity_client.harness.beat(namespace="billing")).pause is False
    await activity_client.schedule("a")
    assert await activity_client.poll("late") == []
    await activity_client.pause("early")
    assert await activity_client.pause(all=True) == 0, "no further worker changes"
    assert await activity_client.resume(all=True) == 2
    assert (await activity_client.beat("early")).pause is False
    assert len(await activity_client.poll("late")) == 1


async def test_resuming_a_namespace_resumes_individually_paused_workers(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat("a")
    await activity_client.beat("b")
    await activity_client.pause("a")
    assert await activity_client.resume(all=True) == 1
    assert (await activity_client.beat("a")).pause is False


async def test_a_filter_pauses_only_the_workers_it_matches_now(activity_client: ActivityClient) -> None:
    for worker in ("blue-1", "blue-2", "green-1"):
        await activity_client.beat(worker)
    assert await activity_client.pause(filter=WorkerFilter(key_prefix="blue-")) == 2
    assert await activity_client.pause(filter=WorkerFilter(key_prefix="blue-")) == 0, (
        "both are paused already"
    )
    assert [(await activity_client.beat(worker)).pause for worker in ("blue-1", "green-1")] == [True, False]
    await activity_client.beat("blue-3")
    assert (await activity_client.beat("blue-3")).pause is False
    assert await activity_client.resume(filter=WorkerFilter(key_prefix="blue-")) == 2


async def test_pauses_are_events_and_survive_restarts_of_server_and_worker(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    await activity_client.pause("w", reason="bad disk")
    await activity_client.harness.restart()
    assert (await activity_client.beat()).pause is True
    replaced = await activity_client.harness.beat(session_id="next", sequence=1)
    assert replaced.outcome == worker_pb2.HEARTBEAT_OUTCOME_SESSION_REPLACED
    assert replaced.pause is True
    [paused] = [e for e in (await activity_client.harness.history()).events if e.type == "WorkerPaused"]
    assert "bad disk" in paused.data_json
    await activity_client.pause(all=True)
    await activity_client.resume("w")
    await activity_client.harness.restart()
    assert (await activity_client.harness.beat(session_id="next", sequence=2)).pause is True, (
        "the pause survives the restart"
    )


@pytest.mark.parametrize("fields", [{}, {"worker": "w", "all": True}])
async def test_a_pause_needs_exactly_one_way_to_select_workers(
    activity_client: ActivityClient, fields: dict[str, object]
) -> None:
    await activity_client.beat()
    refused = await refusal(activity_client.pause(**fields))  # type: ignore[arg-type]
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await activity_client.beat()).pause is False


async def test_pausing_or_draining_an_unknown_worker_is_refused(activity_client: ActivityClient) -> None:
    assert (await refusal(activity_client.pause("unknown"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(activity_client.drain("unknown"))).reason == "WORKER_NOT_FOUND"


# -- draining


async def test_a_draining_worker_finishes_its_work_and_gets_no_more(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("held")
    held = await activity_client.take()
    await activity_client.schedule("new")
    assert await activity_client.drain() == 1
    assert (await activity_client.beat()).drain is True
    assert await activity_client.poll() == []
    assert (await refusal(activity_client.claim("other"))).reason == "WORKER_DRAINING"
    await activity_client.complete(held)
    await activity_client.harness.shut_down()
    assert (await activity_client.describe("new")).state == AVAILABLE


async def test_activities_left_at_the_drain_deadline_are_rescheduled(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("held")
    task = await activity_client.take()
    await activity_client.drain(limit_ms=5_000)
    await activity_client.harness.advance(4_900)
    assert await activity_client.state("held") == STARTED
    await activity_client.harness.advance(500)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_DRAINED)
    moved = await activity_client.describe("held")
    assert (moved.state, moved.attempt, moved.worker_deaths) == (AVAILABLE, 2, 0)
    assert (await refusal(activity_client.complete(task))).reason == "FENCED_OFF"


async def test_a_drain_survives_a_restart_and_a_resurrection_of_its_session(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.drain(limit_ms=5_000)
    await activity_client.harness.restart()
    await activity_client.harness.advance(6_000)
    assert (await activity_client.harness.describe()).state == INACTIVE
    back = await activity_client.beat(lease_ms=60_000)
    assert (back.outcome, back.drain) == (worker_pb2.HEARTBEAT_OUTCOME_RESURRECTED, True)
    await activity_client.harness.advance(6_000)
    assert (await activity_client.harness.describe()).state == ACTIVE, "the deadline applies only once"
    fresh = await activity_client.harness.beat(session_id="next", sequence=1)
    assert fresh.drain is False, "a new session is not draining"


async def test_resuming_cancels_a_drain(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.drain(limit_ms=5_000)
    assert await activity_client.resume("w") == 1
    assert (await activity_client.beat(lease_ms=60_000)).drain is False
    await activity_client.harness.advance(6_000)
    assert (await activity_client.harness.describe()).state == ACTIVE


async def test_a_client_without_a_session_is_not_draining_after_its_return(
    activity_client: ActivityClient,
) -> None:
    await activity_client.harness.beat(lease_ms=60_000)
    await activity_client.drain(limit_ms=0)
    await activity_client.harness.advance(500)
    assert (await activity_client.harness.describe()).state == INACTIVE
    assert (await activity_client.harness.beat()).drain is False


async def test_a_cleaned_up_worker_cannot_be_paused(activity_client: ActivityClient) -> None:
    await activity_client.harness.configure(cleanup_delay_ms=1)
    await activity_client.beat()
    await activity_client.harness.shut_down()
    await activity_client.harness.advance(500)
    assert (await refusal(activity_client.pause("w"))).reason == "WORKER_CLEANED_UP"
