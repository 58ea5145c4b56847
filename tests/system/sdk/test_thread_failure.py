"""If the SDK's own thread fails, no caller waits for ever and no body continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from liveness.sdk import ActivityLost, CallFailed, Client, LivenessSdkError, Worker
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer

Make = Callable[..., Worker]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def fail() -> None:
    raise ZeroDivisionError("a bug")


async def test_a_failed_thread_loses_every_binding_and_reports_it(own_server: LivenessServer) -> None:
    async with Worker(own_server.address, task_queue="queue", lease=600) as worker:
        assert worker._connection is not None
        scheduler = worker._connection.scheduler

        async def hold() -> None:
            async with worker.bind("a"):
                scheduler.call_soon(fail)
                await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)

        with pytest.raises(ActivityLost):
            await hold()
        with pytest.raises(CallFailed):
            worker.bind("b")


async def test_a_failed_thread_ends_the_calls_under_way(own_server: LivenessServer) -> None:
    async with Client(own_server.address) as client:
        await client.list()
        with own_server.suspended():
            call = asyncio.create_task(client.describe("a"))
            await asyncio.sleep(0)
            client._connect().scheduler.call_soon(fail)
            with pytest.raises(LivenessSdkError):
                await asyncio.wait_for(call, SECONDS_MAX)
