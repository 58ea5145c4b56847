"""Bindings of activities that the program's own engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.sdk import (
    ActivityLost,
    ActivityRef,
    AlreadyBound,
    BindingRefused,
    FencingToken,
    InvalidArgument,
    LeaseLost,
    Worker,
    WorkerStopped,
)
from liveness.v1.worker_pb2 import INACTIVE_REASON_SHUTDOWN, WORKER_STATE_INACTIVE
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, call_proxy, until

Make = Callable[..., Worker]


async def test_the_server_has_the_binding_before_the_body_runs(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make() as worker:
        ref = ActivityRef("order", "run-1", "charge", attempt=3, token=b"card")
        async with worker.bind(ref) as binding:
            (bound,) = server.worker(namespace, worker.instance_key).bound_activities
            assert (bound.workflow_id, bound.run_id, bound.activity_id) == ("order", "run-1", "charge")
            assert (bound.attempt, bound.token, bound.task_queue) == (3, b"card", "queue")
            assert binding.fencing_token == FencingToken(3, 1)
            binding.check()
            assert not binding.lost.is_set()
        key = worker.instance_key
        until(lambda: not server.bound(namespace, key))


async def test_the_body_waits_for_the_server(server: LivenessServer, namespace: str) -> None:
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue") as worker:
            entered = asyncio.Event()

            async def hold() -> None:
                async with worker.bind("a"):
                    entered.set()

            with proxy.holding_back("RecordWorkerHeartbeats"):
                before = proxy.calls["RecordWorkerHeartbeats"]
                holding = asyncio.create_task(hold())
                await asyncio.to_thread(until, lambda: proxy.calls["RecordWorkerHeartbeats"] > before)
                assert not entered.is_set()
            await asyncio.wait_for(holding, SECONDS_MAX)
            assert entered.is_set()


async def test_the_worker_reports_its_profile(server: LivenessServer, namespace: str, make: Make) -> None:
    labels = {"zone": "b"}
    async with make(
        instance_key="mine", lease=7.5, labels=labels, build_id="42", identity="me", capabilities=["gpu"]
    ):
        seen = server.worker(namespace, "mine")
    assert dict(seen.labels) == labels
    assert (seen.build_id, seen.worker_identity, list(seen.capabilities)) == ("42", "me", ["gpu"])
    assert (seen.sdk_name, seen.task_queue) == ("liveness-python", "queue")
    assert seen.host_name
    assert seen.process_id
    assert seen.start_time.seconds
    assert seen.granted_lease_duration == Duration(seconds=7, nanos=500_000_000)


async def test_leaving_the_context_shuts_the_worker_down(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make(instance_key="mine") as worker, worker.bind("a"):
        pass
    seen = server.worker(namespace, "mine")
    assert (seen.state, seen.inactive_reason) == (WORKER_STATE_INACTIVE, INACTIVE_REASON_SHUTDOWN)
    assert not seen.cancel_activities, "what had ended was unbound before, not rescheduled"


def test_plain_threads_need_no_event_loop(server: LivenessServer, namespace: str, make: Make) -> None:
    with make() as worker:
        with worker.bind("a") as binding:
            assert server.bound(namespace, worker.instance_key) == {"a"}
            assert binding.fencing_token == FencingToken(1, 1)
        key = worker.instance_key
        until(lambda: not server.bound(namespace, key))
    with pytest.raises(WorkerStopped):
        worker.bind("b")


async def test_a_lease_that_the_server_ends_loses_the_binding(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make(lease=600) as worker:  # so that the news comes on the stream, not with a later heartbeat
        binding = worker.bind("a")
        stopped = asyncio.Event()

        async def hold() -> None:
            async with binding:
                server.expire(namespace, worker.instance_key)
                try:
                    await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)
                except asyncio.CancelledError:
                    stopped.set()
                    raise

        with pytest.raises(LeaseLost) as caught:
            await hold()
        assert stopped.is_set(), "the body was cancelled"
        assert binding.lost.is_set()
        assert binding.lost.reason in str(caught.value)
        with pytest.raises(ActivityLost):
            binding.check()
        with pytest.raises(ActivityLost):
            _ = binding.fencing_token
        async with worker.bind("b") as another:
            assert another.fencing_token == FencingToken(1, 2), "the worker has come back to life"
        key = worker.instance_key
        until(lambda: not server.worker(namespace, key).cancel_activities)


async def test_a_loss_can_be_awaited(server: LivenessServer, namespace: str, make: Make) -> None:
    async with make() as worker:
        binding = worker.bind("a")
        waiter = asyncio.create_task(binding.lost.wait())

        async def hold() -> None:
            async with binding:
                server.expire(namespace, worker.instance_key)
                await asyncio.shield(waiter)

        with pytest.raises(ActivityLost):
            await hold()
        await asyncio.wait_for(waiter, SECONDS_MAX)


def test_a_thread_can_wait_for_a_loss(server: LivenessServer, namespace: str, make: Make) -> None:
    def hold(worker: Worker) -> None:
        with worker.bind("a") as binding:
            server.expire(namespace, worker.instance_key)
            assert binding.lost.wait_blocking(SECONDS_MAX)

    with make() as worker, pytest.raises(ActivityLost):
        hold(worker)


async def test_a_body_that_does_not_stop_learns_of_the_loss_at_its_end(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make() as worker:

        async def hold() -> None:
            async with worker.bind("a") as binding:
                server.expire(namespace, worker.instance_key)
                try:
                    await binding.lost.wait()
                except asyncio.CancelledError:
                    pass  # a body that ignores the loss

        with pytest.raises(ActivityLost):
            await hold()


async def test_a_cancellation_by_the_program_propagates(make: Make) -> None:
    async with make() as worker:
        inside = asyncio.Event()

        async def hold() -> None:
            async with worker.bind("a"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await asyncio.wait_for(inside.wait(), SECONDS_MAX)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_error_in_the_body_propagates(server: LivenessServer, namespace: str, make: Make) -> None:
    async with make() as worker:
        with pytest.raises(ZeroDivisionError):
            async with worker.bind("a"):
                raise ZeroDivisionError
        key = worker.instance_key
        until(lambda: not server.bound(namespace, key))


async def test_a_held_activity_cannot_be_bound_again(make: Make) -> None:
    async with make() as worker, worker.bind("a"):
        with pytest.raises(AlreadyBound):
            await worker.bind("a").__aenter__()
        async with worker.bind(ActivityRef("a", attempt=2)):
            pass


async def test_a_binding_can_be_entered_only_once(make: Make) -> None:
    async with make() as worker:
        binding = worker.bind("a")
        async with binding:
            pass
        with pytest.raises(InvalidArgument):
            await binding.__aenter__()


async def test_the_same_activity_can_be_bound_repeatedly(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make() as worker:
        for _ in range(20):
            async with worker.bind("a"):
                assert server.bound(namespace, worker.instance_key) == {"a"}


async def test_only_the_bind_beyond_the_quota_is_rejected(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    server.configure(namespace, max_bindings_per_worker=1)
    async with make() as worker, worker.bind("a") as first:
        with pytest.raises(BindingRefused):
            await worker.bind("b").__aenter__()
        first.check()
        assert server.bound(namespace, worker.instance_key) == {"a"}


async def test_only_the_invalid_bind_is_rejected(server: LivenessServer, namespace: str, make: Make) -> None:
    async with make() as worker, worker.bind("a") as first:
        with pytest.raises(InvalidArgument, match="workflow_id"):
            await worker.bind("\n").__aenter__()
        async with worker.bind("b"):
            assert server.bound(namespace, worker.instance_key) == {"a", "b"}
        first.check()


async def test_many_activities_can_be_bound_at_once(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    """More than one heartbeat may carry."""
    async with make() as worker:
        everybody = asyncio.Barrier(501)

        async def hold(number: int) -> None:
            async with worker.bind(f"a{number}"):
                await everybody.wait()
                await everybody.wait()

        async with asyncio.TaskGroup() as group:
            for number in range(500):
                group.create_task(hold(number))
            await asyncio.wait_for(everybody.wait(), SECONDS_MAX)
            assert len(server.bound(namespace, worker.instance_key)) == 500
            await everybody.wait()
        key = worker.instance_key
        until(lambda: not server.bound(namespace, key))


async def test_a_cancelled_bind_holds_nothing(own_server: LivenessServer) -> None:
    async with Worker(own_server.address, task_queue="queue", lease=60, disconnect_grace=None) as worker:
        with own_server.suspended():
            waiting = asyncio.create_task(worker.bind("a").__aenter__())
            async with asyncio.timeout(SECONDS_MAX):
                while not worker._live_session().held_attempts:
                    await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with worker.bind("b"):
            pass
        key = worker.instance_key
        until(lambda: not own_server.bound("default", key))


def test_workers_can_run_on_two_loops_at_once(server: LivenessServer, namespace: str, make: Make) -> None:
    async def one(name: str) -> FencingToken:
        async with make(instance_key=name) as worker, worker.bind(name) as binding:
            return await asyncio.to_thread(another, name, binding.fencing_token)

    def another(name: str, token: FencingToken) -> FencingToken:
        async def inner() -> None:
            async with make(instance_key=f"{name}-inner") as worker, worker.bind(f"{name}-inner"):
                pass

        asyncio.run(inner())
        return token

    assert asyncio.run(one("outer")) == FencingToken(1, 1)


async def test_a_binding_to_what_another_worker_holds_is_cancelled_at_once(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    """The order comes on the stream: the next heartbeat is minutes away."""
    async with make(lease=600) as holder, make(lease=600) as late, holder.claim("photo") as task:
        key = late.instance_key
        until(lambda: server.worker(namespace, key).attached)
        with pytest.raises(ActivityLost):
            async with late.bind("photo"):
                await asyncio.Event().wait()
        until(lambda: not server.worker(namespace, key).cancel_activities)
        task.check()
