"""Pause, resume and drain: what workers are told, what they are handed, what is kept."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from liveness.v1 import worker_pb2
from liveness.v1.service_pb2 import WorkerFilter
from tests.server.site import ACTIVE, INACTIVE, Site, refusal
from tests.server.work import AVAILABLE, STARTED, Work


@pytest.fixture
async def work(place: Site) -> Work:
    return Work(await place.start(takeover_grace_ms=0))


async def test_a_paused_worker_is_told_keeps_its_lease_and_is_handed_nothing_new(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.schedule("held")
    held = await work.take()
    assert await work.pause("w", reason="maintenance") == 1
    await work.schedule("new")
    assert await work.poll() == []
    assert (await work.beat()).pause is True
    await work.complete(held)
    seen = await work.site.describe()
    assert (seen.state, seen.paused) == (ACTIVE, True)
    assert (await refusal(work.claim("other"))).reason == "WORKER_PAUSED"


async def test_resuming_answers_a_poll_that_is_waiting(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.pause("w")
    await work.schedule("a")
    waiting = asyncio.ensure_future(work.take())
    while not work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    assert await work.resume("w") == 1
    assert (await waiting).attempt == 1
    assert (await work.beat()).pause is False


async def test_resuming_a_namespace_answers_polls_that_are_waiting(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.pause(all=True)
    await work.schedule("a")
    waiting = asyncio.ensure_future(work.take())
    while not work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    assert not waiting.done()
    await work.resume(all=True)
    assert (await waiting).attempt == 1


async def test_a_paused_namespace_pauses_whoever_joins_it_later(work: Work) -> None:
    await work.beat("early")
    assert await work.pause(all=True) == 1
    assert (await work.beat("early")).pause is True
    assert (await work.beat("late")).pause is True
    assert (await work.site.beat(namespace="billing")).pause is False
    await work.schedule("a")
    assert await work.poll("late") == []
    await work.pause("early")
    assert await work.pause(all=True) == 0, "nobody more"
    assert await work.resume(all=True) == 2
    assert (await work.beat("early")).pause is False
    assert len(await work.poll("late")) == 1


async def test_resuming_a_namespace_resumes_those_paused_on_their_own(work: Work) -> None:
    await work.beat("a")
    await work.beat("b")
    await work.pause("a")
    assert await work.resume(all=True) == 1
    assert (await work.beat("a")).pause is False


async def test_a_filter_pauses_whom_it_finds_now(work: Work) -> None:
    for worker in ("blue-1", "blue-2", "green-1"):
        await work.beat(worker)
    assert await work.pause(filter=WorkerFilter(key_prefix="blue-")) == 2
    assert await work.pause(filter=WorkerFilter(key_prefix="blue-")) == 0, "they are paused already"
    assert [(await work.beat(worker)).pause for worker in ("blue-1", "green-1")] == [True, False]
    await work.beat("blue-3")
    assert (await work.beat("blue-3")).pause is False
    assert await work.resume(filter=WorkerFilter(key_prefix="blue-")) == 2


async def test_pauses_are_events_and_survive_restarts_of_server_and_worker(work: Work) -> None:
    await work.beat()
    await work.pause("w", reason="bad disk")
    await work.site.restart()
    assert (await work.beat()).pause is True
    replaced = await work.site.beat(session_id="next", sequence=1)
    assert replaced.outcome == worker_pb2.HEARTBEAT_OUTCOME_SESSION_REPLACED
    assert replaced.pause is True
    [paused] = [e for e in (await work.site.history()).events if e.type == "WorkerPaused"]
    assert "bad disk" in paused.data_json
    await work.pause(all=True)
    await work.resume("w")
    await work.site.restart()
    assert (await work.site.beat(session_id="next", sequence=2)).pause is True, "its namespace still is"


@pytest.mark.parametrize("fields", [{}, {"worker": "w", "all": True}])
async def test_whom_to_pause_must_be_said_in_one_way(work: Work, fields: dict[str, object]) -> None:
    await work.beat()
    refused = await refusal(work.pause(**fields))  # type: ignore[arg-type]
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await work.beat()).pause is False


async def test_pausing_nobody_is_an_error(work: Work) -> None:
    assert (await refusal(work.pause("nobody"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(work.drain("nobody"))).reason == "WORKER_NOT_FOUND"


# -- draining


async def test_a_drained_worker_finishes_and_is_handed_nothing_new(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.schedule("held")
    held = await work.take()
    await work.schedule("new")
    assert await work.drain() == 1
    assert (await work.beat()).drain is True
    assert await work.poll() == []
    assert (await refusal(work.claim("other"))).reason == "WORKER_DRAINING"
    await work.complete(held)
    await work.site.shut_down()
    assert (await work.describe("new")).state == AVAILABLE


async def test_what_is_left_at_the_limit_is_rescheduled(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.schedule("held")
    task = await work.take()
    await work.drain(limit_ms=5_000)
    await work.site.advance(4_900)
    assert await work.state("held") == STARTED
    await work.site.advance(500)
    seen = await work.site.describe()
    assert (seen.state, seen.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_DRAINED)
    moved = await work.describe("held")
    assert (moved.state, moved.attempt, moved.worker_deaths) == (AVAILABLE, 2, 0)
    assert (await refusal(work.complete(task))).reason == "FENCED_OFF"


async def test_a_drain_outlasts_a_restart_and_the_same_sessions_return(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.drain(limit_ms=5_000)
    await work.site.restart()
    await work.site.advance(6_000)
    assert (await work.site.describe()).state == INACTIVE
    back = await work.beat(lease_ms=60_000)
    assert (back.outcome, back.drain) == (worker_pb2.HEARTBEAT_OUTCOME_RESURRECTED, True)
    await work.site.advance(6_000)
    assert (await work.site.describe()).state == ACTIVE, "its limit was over once"
    fresh = await work.site.beat(session_id="next", sequence=1)
    assert fresh.drain is False, "a new process is a new beginning"


async def test_a_drain_can_be_called_off(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.drain(limit_ms=5_000)
    assert await work.resume("w") == 1
    assert (await work.beat(lease_ms=60_000)).drain is False
    await work.site.advance(6_000)
    assert (await work.site.describe()).state == ACTIVE


async def test_a_client_without_sessions_is_not_drained_for_ever(work: Work) -> None:
    await work.site.beat(lease_ms=60_000)
    await work.drain(limit_ms=0)
    await work.site.advance(500)
    assert (await work.site.describe()).state == INACTIVE
    assert (await work.site.beat()).drain is False


async def test_a_cleaned_up_worker_cannot_be_paused(work: Work) -> None:
    await work.site.configure(cleanup_delay_ms=1)
    await work.beat()
    await work.site.shut_down()
    await work.site.advance(500)
    assert (await refusal(work.pause("w"))).reason == "WORKER_CLEANED_UP"
