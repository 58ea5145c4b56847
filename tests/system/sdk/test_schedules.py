"""Schedules and concurrency limits as programs use them, on a real server."""

from __future__ import annotations

import asyncio

import pytest

from liveness.sdk import (
    ActivityRef,
    Client,
    InvalidArgument,
    Schedule,
    ScheduleExists,
    ScheduleUnknown,
    Task,
)
from tests.system.sdk.conftest import Make


async def test_a_schedule_is_created_changed_fired_and_deleted(client: Client) -> None:
    nightly = Schedule(
        type="report", task_queue="night", cron="30 2 * * *", time_zone="Europe/Berlin", input={"a": 1}
    )
    created = await client.schedules.create("nightly", nightly)
    assert (created.cron, created.time_zone, created.paused) == ("30 2 * * *", "Europe/Berlin", False)
    assert len(created.next_times) == 5
    assert created.next == created.next_times[0]
    with pytest.raises(ScheduleExists):
        await client.schedules.create("nightly", Schedule(type="other", task_queue="night", every=60))
    changed = await client.schedules.update(
        "nightly", Schedule(type="report", task_queue="night", every=3_600)
    )
    assert changed.every is not None
    assert changed.every.total_seconds() == 3_600
    assert await client.schedules.pause("nightly", reason="why")
    first = await client.schedules.trigger("nightly", trigger_id="one")
    again = await client.schedules.trigger("nightly", trigger_id="one")
    assert (first.ref, first.created, again.created) == (again.ref, True, False)
    [listed] = await client.schedules.list()
    assert (listed.paused, listed.pause_reason, listed.fired) == (True, "why", 1)
    assert listed.firings[0].activity == first.ref
    assert await client.schedules.resume("nightly")
    await client.schedules.delete("nightly")
    with pytest.raises(ScheduleUnknown):
        await client.schedules.get("nightly")
    with pytest.raises(InvalidArgument, match="five fields"):
        await client.schedules.create("s", Schedule(type="report", task_queue="night", cron="often"))


async def test_a_schedule_runs_its_handler_every_second(client: Client, make: Make) -> None:
    ran = asyncio.Event()
    async with make() as worker:

        @worker.activity("tick")
        async def tick(task: Task, value: int) -> None:
            assert value == 7
            ran.set()

        await client.schedules.create("often", Schedule(type="tick", task_queue="queue", every=1, input=7))
        running = asyncio.create_task(worker.run(handle_signals=False))
        try:
            async with asyncio.timeout(60):
                await ran.wait()
        finally:
            worker.stop()
            await running


async def test_no_two_handlers_of_a_limited_workflow_run_at_once(client: Client, make: Make) -> None:
    at_once, most = 0, 0
    assert (await client.set_limit("tenant", 1)).running == 0
    async with make(max_concurrent=4) as worker:

        @worker.activity("work")
        async def work(task: Task) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1

        refs = [ActivityRef("tenant", f"{number}", "work") for number in range(5)]
        for ref in refs:
            await client.schedule("work", id=ref, task_queue="queue")
        running = asyncio.create_task(worker.run(handle_signals=False))
        try:
            async with asyncio.timeout(60):
                for ref in refs:
                    await client.wait(ref)
        finally:
            worker.stop()
            await running
    assert most == 1
    [limit] = await client.limits()
    assert (limit.maximum, limit.running, limit.waiting) == (1, 0, 0)
    await client.remove_limit("tenant")
    assert await client.limits() == []
