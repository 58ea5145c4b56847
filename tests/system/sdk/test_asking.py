"""A program asks for workers, watches them and gives them orders; with coroutines and without."""

from __future__ import annotations

import asyncio
import signal
from threading import Thread

import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.sdk import (
    ActivityFailed,
    ActivityRef,
    ActivityState,
    Client,
    InactiveReason,
    InvalidArgument,
    LivenessEvent,
    NotConvertible,
    ServerAway,
    Task,
    Worker,
    WorkerState,
    WorkerStatus,
    WorkerUnknown,
)
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest
from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.system.sdk.conftest import Make
from tests.system.sdk.running_worker import running
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, free_address, until


async def test_workers_are_listed_and_described(make: Make, client: Client) -> None:
    async with (
        make(instance_key="a-1", build_id="1.0", labels={"zone": "x"}) as first,
        make(instance_key="b-1", build_id="2.0"),
    ):
        async with first.bind(ActivityRef("job")):
            assert [worker.key for worker in await client.workers()] == ["a-1", "b-1"]
            assert [worker.key for worker in await client.workers(build_id="2.0")] == ["b-1"]
            assert [worker.key for worker in await client.workers(prefix="a-", limit=1)] == ["a-1"]
            assert await client.workers(states=[WorkerState.INACTIVE]) == []
            seen = await client.worker("a-1")
        assert (seen.state, seen.status, seen.lease) == (WorkerState.ACTIVE, WorkerStatus.RUNNING, 60)
        assert (seen.labels, seen.activity_count) == ({"zone": "x"}, 1)
        assert [ref.workflow_id for ref in seen.activities] == ["job"]
        assert seen.last_heartbeat is not None
        assert not seen.died


async def test_an_unknown_worker_is_reported(client: Client) -> None:
    with pytest.raises(WorkerUnknown, match="nobody"):
        await client.worker("nobody")


async def test_a_goodbye_is_no_death(make: Make, client: Client) -> None:
    async with make(instance_key="gone"):
        pass
    gone = await client.worker("gone")
    assert (gone.state, gone.inactive_reason, gone.died) == (
        WorkerState.INACTIVE,
        InactiveReason.SHUTDOWN,
        False,
    )
    assert await client.why("gone") is None


def test_a_death_tells_why(server: LivenessServer, namespace: str) -> None:
    heartbeat = WorkerHeartbeat(worker_instance_key="w", session_id="s", lease_duration=Duration(seconds=1))
    request = RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=heartbeat)
    with Client(server.address, namespace=namespace).blocking as client:
        server.liveness.RecordWorkerHeartbeat(request)
        death = until(lambda: client.why("w"))
        assert death is not None
        assert (death.worker, death.cause, death.lease, death.was_alive) == (
            "w",
            InactiveReason.LEASE_EXPIRED,
            1,
            False,
        )
        assert death.silence is not None
        assert death.silence >= 1
        assert str(death).startswith("w was declared dead at ")
        assert client.worker("w").died


async def test_orders_reach_workers_by_key_by_condition_and_all_of_them(make: Make, client: Client) -> None:
    async with make(instance_key="a", build_id="1") as first, make(instance_key="b", build_id="2") as second:
        assert await client.pause("a", reason="disk") == 1
        await asyncio.to_thread(until, lambda: first.paused)
        assert [second.paused] == [False], "the order was for one worker"
        assert await client.pause(build_id="2") == 1
        await asyncio.to_thread(until, lambda: second.paused)
        assert await client.resume(build_id="1") == 1
        assert await client.resume(all=True) == 1

        def both_run() -> bool:
            return not (first.paused or second.paused)

        await asyncio.to_thread(until, both_run)
        assert await client.drain("a", limit=5) == 0
        await asyncio.to_thread(until, lambda: first.draining)


@pytest.mark.parametrize("selection", [{}, {"worker": "a", "all": True}, {"worker": "a", "host": "h"}])
async def test_an_order_needs_one_selection(client: Client, selection: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="one of these only"):
        await client.pause(**selection)  # type: ignore[arg-type]  # the point of the test


async def test_events_are_watched_in_order_while_the_server_restarts(own_server: LivenessServer) -> None:
    async with Client(own_server.address) as client:
        seen: asyncio.Queue[LivenessEvent] = asyncio.Queue()

        async def watch() -> None:
            async for event in client.watch(worker="w", from_beginning=True):
                seen.put_nowait(event)

        watching = asyncio.create_task(watch())
        async with Worker(own_server.address, instance_key="w", lease=60):
            first = await asyncio.wait_for(seen.get(), SECONDS_MAX)
            assert (first.type, first.worker, first.namespace) == ("WorkerRegistered", "w", "default")
            own_server.end(signal.SIGKILL)
            own_server.start()
            await client.pause("w")
            events = [first]
            while events[-1].type != "WorkerPaused":
                events.append(await asyncio.wait_for(seen.get(), SECONDS_MAX))
            sequences = [event.sequence for event in events]
            assert sequences == sorted(set(sequences)), "in order, and each once"
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


def test_a_watch_without_an_event_loop_ends_with_its_loop(server: LivenessServer, namespace: str) -> None:
    with Client(server.address, namespace=namespace).blocking as client:
        found: list[str] = []

        def watch() -> None:
            for event in client.watch(from_beginning=True):
                found.append(event.worker)
                if event.worker == "b":
                    break

        watching = Thread(target=watch)
        watching.start()
        for key in ("a", "b"):
            with Worker(server.address, namespace=namespace, instance_key=key):
                pass
        watching.join(SECONDS_MAX)
        assert found[0] == "a"
        assert found[-1] == "b"


async def test_a_watch_of_an_absent_server_ends_with_an_error() -> None:
    async with Client(free_address(), timeout=0.2) as client:
        with pytest.raises(ServerAway):
            async for _ in client.watch():
                pass


async def test_a_handle_waits_for_the_result(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("double")
        async def double(task: Task, number: int) -> int:
            return 2 * number

        async with running(worker):
            job = await client.schedule("double", id="a", input=21, task_queue="queue")
            assert await job.result(int, timeout=SECONDS_MAX) == 42
            assert await (await client.handle("a", type="double")).result() == 42
            with pytest.raises(NotConvertible):
                await job.result(list[str])


async def test_a_handle_tells_why_there_is_no_result(client: Client) -> None:
    job = await client.schedule("t", id="a", task_queue="queue")
    with pytest.raises(TimeoutError, match="AVAILABLE"):
        await job.result(timeout=0.01)
    await job.cancel(reason="no need")
    with pytest.raises(ActivityFailed, match="CANCELLED: no need") as failed:
        await job.result()
    assert failed.value.state is ActivityState.CANCELLED


def test_address_and_namespace_come_from_the_environment(
    server: LivenessServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_ADDRESS", server.address)
    monkeypatch.setenv("LIVENESS_NAMESPACE", namespace)
    with Worker(instance_key="from-environment") as worker, Client().blocking as client:
        assert worker.namespace == namespace
        assert [info.key for info in client.workers()] == ["from-environment"]
        job = client.schedule("t", id="a", task_queue="queue")
        assert client.describe(job.ref).state is ActivityState.AVAILABLE
        job.cancel()
        with pytest.raises(ActivityFailed):
            job.result()
