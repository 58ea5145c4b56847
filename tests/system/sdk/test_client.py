"""The client schedules activities and learns their outcome."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from liveness.sdk import (
    ActivityDiffers,
    ActivityRef,
    ActivityState,
    ActivityUnknown,
    Client,
    InvalidArgument,
    RetryPolicy,
    ServerAway,
)
from tests.system.sdk.server_process import LivenessServer, call_proxy, free_address


async def test_scheduling_twice_changes_nothing(client: Client) -> None:
    first = await client.schedule("resize", id="photo-17", input={"width": 200}, task_queue="queue")
    again = await client.schedule("resize", id="photo-17", input={"width": 200}, task_queue="queue")
    assert (first.created, again.created) == (True, False)
    assert first.ref == ActivityRef("photo-17", "-", "resize")
    assert again.state is ActivityState.AVAILABLE
    with pytest.raises(ActivityDiffers, match="photo-17"):
        await client.schedule("resize", id="photo-17", input={"width": 100}, task_queue="queue")


async def test_an_activity_can_be_named_by_all_its_names(client: Client) -> None:
    ref = ActivityRef("order", "run-1", "charge", task_queue="queue")
    assert (await client.schedule("pay", id=ref)).ref == ref
    assert (await client.describe(ref)).type == "pay"


async def test_describe_shows_an_activity(client: Client) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    job = await client.schedule("resize", id="a", input=b"in", task_queue="queue", delay=timedelta(hours=1))
    info = await client.describe(job.ref)
    assert (info.id, info.type, info.input, info.result) == ("a", "resize", b"in", b"")
    assert (info.state, info.failures, info.worker, info.resting) == (ActivityState.WAITING, 0, "", False)
    assert before < info.since
    assert info.due is not None
    assert before + timedelta(hours=1) < info.due


async def test_an_unknown_activity_is_reported(client: Client) -> None:
    with pytest.raises(ActivityUnknown, match="nothing"):
        await client.describe("nothing")
    with pytest.raises(ActivityUnknown):
        await client.cancel("nothing")


async def test_an_invalid_request_is_rejected(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="task_queue"):
        await client.schedule("resize", id="a")
    with pytest.raises(InvalidArgument):
        await client.schedule("resize", id="", task_queue="queue")


async def test_lists_match_their_filters(client: Client) -> None:
    for number in range(5):
        await client.schedule("t", id=f"{number}", task_queue="queue" if number % 2 else "other")
    await client.cancel("3", type="t")
    assert [info.id for info in await client.list()] == ["0", "1", "2", "3", "4"]
    assert [info.id for info in await client.list(task_queue="queue")] == ["1", "3"]
    assert [info.id for info in await client.list(states=[ActivityState.CANCELLED])] == ["3"]
    assert [info.id for info in await client.list(limit=2)] == ["0", "1"]
    assert await client.list(worker="nobody") == []


async def test_waiting_ends_when_the_activity_is_cancelled(client: Client) -> None:
    job = await client.schedule("t", id="a", task_queue="queue", retry=RetryPolicy(maximum_attempts=3))
    waiting = asyncio.create_task(client.wait(job.ref))
    assert not await client.cancel(job.ref, reason="no need"), "nobody held it"
    done = await asyncio.wait_for(waiting, 60)
    assert (done.state, done.last_failure) == (ActivityState.CANCELLED, "no need")


async def test_a_call_whose_answer_was_lost_is_repeated(server: LivenessServer, namespace: str) -> None:
    with call_proxy(server.address) as proxy:
        async with Client(proxy.address, namespace=namespace) as client:
            proxy.lose_answers("ScheduleActivity", 3)
            job = await client.schedule("t", id="a", task_queue="queue")
            assert (await client.describe(job.ref)).state is ActivityState.AVAILABLE
    assert proxy.calls["ScheduleActivity"] == 4


async def test_no_try_goes_on_beyond_the_deadline_of_the_call(server: LivenessServer, namespace: str) -> None:
    with call_proxy(server.address) as proxy:
        async with Client(proxy.address, namespace=namespace, timeout=2) as client:
            proxy.lose_answers("ScheduleActivity", 1)
            await client.schedule("t", id="a", task_queue="queue")
    assert proxy.calls["ScheduleActivity"] == 2
    assert 0 < proxy.time_allowed_s["ScheduleActivity"] < 2.5, "gRPC rounds it up a little"


async def test_an_unreachable_server_is_reported() -> None:
    address = free_address()
    async with Client(address, timeout=0.3) as client:
        with pytest.raises(ServerAway, match=address):
            await client.describe("a")


def test_a_program_without_an_event_loop_can_use_the_client(server: LivenessServer, namespace: str) -> None:
    with Client(server.address, namespace=namespace).blocking as client:
        job = client.schedule("t", id="a", task_queue="queue")
        assert client.describe(job.ref).state is ActivityState.AVAILABLE
        assert [info.id for info in client.list()] == ["a"]
        with pytest.raises(TimeoutError):
            client.wait(job.ref, timeout=0.1)
        client.cancel(job.ref)
        assert client.wait(job.ref).state is ActivityState.CANCELLED
