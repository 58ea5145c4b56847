"""Time limits and progress as handlers and clients see them, on a real server."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from liveness.sdk import (
    ActivityLost,
    ActivityState,
    Client,
    InvalidArgument,
    RetryPolicy,
    Task,
    Timeouts,
    Worker,
)
from tests.system.sdk.conftest import Make

AT_ONCE = RetryPolicy(initial_interval=0.01)


async def run_until_rested(worker: Worker, client: Client, id: str) -> None:
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        async with asyncio.timeout(60):
            await client.wait(id, type="crawl")
    finally:
        worker.stop()
        await running


async def test_a_stuck_coroutine_is_cancelled_and_the_activity_tried_again(
    make: Make, client: Client
) -> None:
    outcomes: list[str] = []
    async with make() as worker:

        @worker.activity("crawl")
        async def crawl(task: Task) -> str:
            if task.attempt > 1:
                return "done"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                outcomes.append(task.lost.reason)
                raise
            return "never"

        await client.schedule(
            "crawl", id="a", task_queue="queue", retry=AT_ONCE, timeouts=Timeouts(start_to_close=0.3)
        )
        await run_until_rested(worker, client, "a")
    done = await client.describe("a", type="crawl")
    assert (done.state, done.failures, done.value()) == (ActivityState.COMPLETED, 1, "done")
    assert outcomes, "the handler was cancelled"


async def test_a_stuck_thread_hears_of_it_and_its_progress_reaches_the_next_attempt(
    make: Make, client: Client
) -> None:
    lost = Event()
    seen: list[object] = []
    async with make() as worker:

        @worker.activity("crawl")
        def crawl(task: Task) -> object:
            if task.attempt > 1:
                seen.append(task.details())
                return task.details()
            task.progress({"rows": 17})
            task.lost.wait_blocking()
            with pytest.raises(ActivityLost):
                task.progress({"rows": 18})
            lost.set()
            return None

        await client.schedule(
            "crawl", id="a", task_queue="queue", retry=AT_ONCE, timeouts=Timeouts(heartbeat=0.5)
        )
        await run_until_rested(worker, client, "a")
    assert lost.is_set()
    done = await client.describe("a", type="crawl")
    assert (done.value(), seen, done.details()) == ({"rows": 17}, [{"rows": 17}], {"rows": 17})


async def test_a_handler_that_reports_progress_may_take_any_time(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("crawl")
        async def crawl(task: Task) -> int:
            began = worker.stats.completed
            heard = 0
            before = None
            while heard < 8:
                task.progress(heard)
                info = await client.describe("a", type="crawl")
                if info.last_heartbeat != before:
                    before, heard = info.last_heartbeat, heard + 1
                await asyncio.sleep(0.01)
            return began

        await client.schedule("crawl", id="a", task_queue="queue", timeouts=Timeouts(heartbeat=1))
        await run_until_rested(worker, client, "a")
    done = await client.describe("a", type="crawl")
    assert (done.state, done.failures) == (ActivityState.COMPLETED, 0)


async def test_the_last_progress_before_a_failure_is_not_lost(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("crawl")
        async def crawl(task: Task) -> object:
            if task.attempt > 1:
                return task.details()
            for row in range(1_000):
                task.progress(row)
            raise OSError("disk")

        await client.schedule("crawl", id="a", task_queue="queue", retry=AT_ONCE)
        await run_until_rested(worker, client, "a")
    assert (await client.describe("a", type="crawl")).value() == 999


async def test_an_activity_that_nobody_takes_in_time_fails(client: Client) -> None:
    await client.schedule("crawl", id="a", task_queue="queue", timeouts=Timeouts(schedule_to_start=0.1))
    async with asyncio.timeout(60):
        failed = await client.wait("a", type="crawl")
    assert (failed.state, failed.timed_out) == (ActivityState.FAILED, "schedule_to_start")


async def claim_and_get_stuck(worker: Worker) -> None:
    async with worker.claim("a", timeouts=Timeouts(start_to_close=0.3)) as task:
        with pytest.raises(InvalidArgument, match="at most 16384 bytes"):
            task.progress("x" * 20_000)
        await asyncio.Event().wait()


async def test_a_claim_has_limits_and_progress(make: Make, client: Client) -> None:
    async with make() as worker:
        with pytest.raises(ActivityLost):
            await claim_and_get_stuck(worker)
        assert (await client.describe("a")).timed_out == "start_to_close"
