"""The pytest fixtures for users of the SDK: a local server with a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from liveness import Worker
from liveness.sdk import ActivityRef, Client, LeaseLost, Task
from liveness.testing import LocalServer

pytest_plugins = ["liveness.testing.fixtures"]

TIMEOUT_S = 30


def test_a_binding_is_lost_when_the_server_clock_passes_the_lease(liveness_server: LocalServer) -> None:
    with Worker(liveness_server.address, task_queue="q") as worker:
        with pytest.raises(LeaseLost), worker.bind(ActivityRef("order-7")) as binding:  # noqa: PT012  # the end of the block raises
            assert not binding.lost.is_set()
            liveness_server.advance(60)
            assert binding.lost.wait_blocking(TIMEOUT_S)
        with worker.bind(ActivityRef("order-8")) as binding:
            assert not binding.lost.is_set(), "the worker continues with a new lease"


def test_a_test_can_expire_a_lease(liveness_server: LocalServer) -> None:
    with (  # noqa: PT012  # the end of the block raises
        Worker(liveness_server.address, task_queue="q", instance_key="w") as worker,
        pytest.raises(LeaseLost),
        worker.bind(ActivityRef("order-7")) as binding,
    ):
        liveness_server.expire("w")
        assert binding.lost.wait_blocking(TIMEOUT_S)


async def test_activities_run_under_asyncio_without_moving_the_clock(liveness_server: LocalServer) -> None:
    async with Worker(liveness_server.address, task_queue="q") as worker:

        @worker.activity("shout")
        async def shout(task: Task) -> bytes:
            return task.input.upper()

        running = asyncio.ensure_future(worker.run(handle_signals=False))
        client = Client(liveness_server.address)
        await client.schedule("shout", id="greeting", input=b"hello", task_queue="q")
        done = await asyncio.wait_for(client.wait("greeting", type="shout"), TIMEOUT_S)
        assert done.result == b"HELLO"
        worker.stop()
        await asyncio.wait_for(running, TIMEOUT_S)


def test_a_live_clock_cannot_be_moved(live_liveness_server: LocalServer) -> None:
    with pytest.raises(RuntimeError, match="uses the real clock"):
        live_liveness_server.advance(1)
