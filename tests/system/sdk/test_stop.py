"""A worker stops by its program, by a signal or by command; and it pauses."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable

import pytest

from liveness.sdk import ActivityLost, ActivityState, Client, RetryPolicy, Task, Worker
from liveness.sdk.values import to_duration
from liveness.v1 import admin_pb2
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
)
from tests.system.sdk.running_worker import running, wait_finished
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer
from tests.system.sdk.worker_programs import RUNNER, program

Make = Callable[..., Worker]
ONCE = RetryPolicy(maximum_attempts=1)
SOON = RetryPolicy(initial_interval=0.01, maximum_interval=0.01)


# -- stopping


async def test_stopping_lets_bodies_finish(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    async with make(instance_key="mine", stop_timeout=SECONDS_MAX) as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> str:
            begun.set()
            await finish.wait()
            return "finished"

        run = asyncio.create_task(worker.run(handle_signals=False))
        await client.schedule("slow", id="a", task_queue="queue")
        await asyncio.wait_for(begun.wait(), SECONDS_MAX)
        worker.stop("time to go")
        await client.schedule("slow", id="b", task_queue="queue")
        finish.set()
        await asyncio.wait_for(run, SECONDS_MAX)
        assert (await client.describe("a", type="slow")).result == b"finished"
        assert (await client.describe("b", type="slow")).state is ActivityState.AVAILABLE
        seen = server.worker(namespace, "mine")
        assert (seen.state, seen.inactive_reason) == (WORKER_STATE_INACTIVE, INACTIVE_REASON_SHUTDOWN)
        assert "time to go" in seen.inactive_detail


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_bodies_that_do_not_finish_in_time_are_handed_back(
    make: Make, client: Client, in_a_thread: bool
) -> None:
    begun, told = threading.Event(), threading.Event()
    async with make(stop_timeout=0.1) as worker:

        async def slow(task: Task) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.set()

        def slow_in_a_thread(task: Task) -> None:
            begun.set()
            task.lost.wait_blocking(SECONDS_MAX)
            told.set()

        worker.activity("slow")(slow_in_a_thread if in_a_thread else slow)
        run = asyncio.create_task(worker.run(handle_signals=False))
        await client.schedule("slow", id="a", task_queue="queue")
        assert await asyncio.to_thread(begun.wait, SECONDS_MAX)
        worker.stop()
        await asyncio.wait_for(run, SECONDS_MAX)
        assert await asyncio.to_thread(told.wait, SECONDS_MAX)
        left = await client.describe("a", type="slow")
        assert (left.state, left.ref.attempt, left.failures) == (ActivityState.AVAILABLE, 2, 0)
        assert worker.stats.released == 1


async def test_a_cancelled_run_hands_its_activities_back(make: Make, client: Client) -> None:
    begun = asyncio.Event()
    async with make() as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> None:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(worker.run(handle_signals=False))
        await client.schedule("slow", id="a", task_queue="queue")
        await asyncio.wait_for(begun.wait(), SECONDS_MAX)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (await client.describe("a", type="slow")).state is ActivityState.AVAILABLE


async def test_stopping_waits_for_bindings(server: LivenessServer, namespace: str, make: Make) -> None:
    async with make(instance_key="mine", stop_timeout=SECONDS_MAX) as worker:
        held, finish = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with worker.bind("a"):
                held.set()
                await finish.wait()

        holding = asyncio.create_task(hold())
        await asyncio.wait_for(held.wait(), SECONDS_MAX)
        run = asyncio.create_task(worker.run(handle_signals=False))
        worker.stop()
        asyncio.get_running_loop().call_later(0.2, finish.set)
        await asyncio.wait_for(run, SECONDS_MAX)
        await holding
        assert not server.worker(namespace, "mine").cancel_activities, "it was not taken away"


async def test_a_binding_that_does_not_end_in_time_is_lost(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make(instance_key="mine", stop_timeout=0.1) as worker:

        async def hold() -> None:
            async with worker.bind("a"):
                worker.stop()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await worker.run(handle_signals=False)
        with pytest.raises(ActivityLost):
            await holding


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_gracefully(
    server: LivenessServer, namespace: str, number: signal.Signals
) -> None:
    options = {"namespace": namespace, "lease": 60, "stop_timeout": 0.2}
    with (
        Client(server.address, namespace=namespace).blocking as client,
        program(RUNNER, server.address, json.dumps(options)) as runner,
    ):
        key = runner.next_line("running")[1]
        client.schedule("slow", id="a", task_queue="queue")
        runner.next_line("begun")
        runner.send(number)
        runner.next_line("stopped")
        assert runner.next_line("stats") == ["stats", "0", "0", "1"]
        runner.next_line("done")
        assert client.describe("a", type="slow").state is ActivityState.AVAILABLE
        seen = server.worker(namespace, key)
        assert seen.inactive_reason == INACTIVE_REASON_SHUTDOWN
        assert number.name in seen.inactive_detail


def test_a_second_signal_ends_the_worker_at_once(server: LivenessServer, namespace: str) -> None:
    options = {"namespace": namespace, "lease": 60, "stop_timeout": 600}
    with (
        Client(server.address, namespace=namespace).blocking as client,
        program(RUNNER, server.address, json.dumps(options)) as runner,
    ):
        runner.next_line("running")
        client.schedule("slow", id="a", task_queue="queue")
        runner.next_line("begun")
        runner.send(signal.SIGTERM)
        runner.send(signal.SIGINT)  # two equal signals could merge into one
        runner.next_line("stopped")
        runner.next_line("done")


# -- commands


async def test_a_paused_worker_finishes_its_activities_and_takes_none(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    async with make(instance_key="mine") as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> None:
            begun.set()
            await finish.wait()

        async with running(worker):
            await client.schedule("slow", id="a", task_queue="queue")
            await asyncio.wait_for(begun.wait(), SECONDS_MAX)
            server.admin.PauseWorkers(
                admin_pb2.PauseWorkersRequest(namespace=namespace, worker_instance_key="mine")
            )
            async with asyncio.timeout(SECONDS_MAX):
                while not worker.paused:
                    await asyncio.sleep(0.01)
            await client.schedule("slow", id="b", task_queue="queue")
            finish.set()
            assert (await wait_finished(client, "slow", "a")).state is ActivityState.COMPLETED
            assert (await client.describe("b", type="slow")).state is ActivityState.AVAILABLE
            assert server.worker(namespace, "mine").state == WORKER_STATE_ACTIVE
            server.admin.ResumeWorkers(
                admin_pb2.ResumeWorkersRequest(namespace=namespace, worker_instance_key="mine")
            )
            assert (await wait_finished(client, "slow", "b")).state is ActivityState.COMPLETED
            assert not worker.paused


async def test_a_drained_worker_finishes_and_ends(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    async with make(instance_key="mine", stop_timeout=0) as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> None:
            begun.set()
            await finish.wait()

        run = asyncio.create_task(worker.run(handle_signals=False))
        await client.schedule("slow", id="a", task_queue="queue")
        await asyncio.wait_for(begun.wait(), SECONDS_MAX)
        limit = admin_pb2.DrainWorkerRequest(
            namespace=namespace, worker_instance_key="mine", limit=to_duration(SECONDS_MAX)
        )
        server.admin.DrainWorker(limit)
        async with asyncio.timeout(SECONDS_MAX):
            while not worker.draining:
                await asyncio.sleep(0.01)
        await client.schedule("slow", id="b", task_queue="queue")
        finish.set()
        await asyncio.wait_for(run, SECONDS_MAX)
        assert (await client.describe("a", type="slow")).state is ActivityState.COMPLETED
        assert (await client.describe("b", type="slow")).state is ActivityState.AVAILABLE
        assert server.worker(namespace, "mine").inactive_reason == INACTIVE_REASON_SHUTDOWN
