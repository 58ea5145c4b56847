"""Claims of activities that a worker found itself: at most one worker holds each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from liveness.sdk import (
    ActivityFinished,
    ActivityHeld,
    ActivityLost,
    ActivityState,
    AlreadyBound,
    Client,
    GiveUp,
    InvalidArgument,
    NoNewWork,
    RetryPolicy,
    Worker,
)
from liveness.v1 import admin_pb2
from tests.system.sdk.server_process import LivenessServer, call_proxy, until

Make = Callable[..., Worker]


async def test_a_claim_whose_body_succeeds_is_completed(make: Make, client: Client) -> None:
    async with make() as worker:
        async with worker.claim("photo-17", type="resize", input={"width": 200}) as task:
            assert (task.id, task.type, task.attempt, task.json()) == (
                "photo-17",
                "resize",
                1,
                {"width": 200},
            )
            held = await client.describe("photo-17", type="resize")
            assert (held.state, held.worker) == (ActivityState.STARTED, worker.instance_key)
            assert task.fencing_token == (1, 1)
            task.result = {"bytes": 3}
        done = await client.describe("photo-17", type="resize")
        assert (done.state, done.json()) == (ActivityState.COMPLETED, {"bytes": 3})
        with pytest.raises(ActivityFinished):
            await worker.claim("photo-17", type="resize").__aenter__()
        assert worker.stats.completed == 1


def test_threads_can_claim(make: Make, server: LivenessServer, namespace: str) -> None:
    with make() as worker, worker.claim("photo-17") as task:
        task.result = b"done"
    assert server.activity(namespace, "photo-17", "-").result == b"done"


async def test_only_one_worker_can_claim_an_activity(make: Make, client: Client) -> None:
    async with make(instance_key="one") as one, make(instance_key="two") as two:
        async with one.claim("a"):
            with pytest.raises(ActivityHeld, match="one"):
                await two.claim("a").__aenter__()
            with pytest.raises(AlreadyBound):
                await one.claim("a").__aenter__()
        async with two.claim("b") as task:
            task.check()


async def test_an_error_fails_the_attempt_and_propagates(make: Make, client: Client) -> None:
    retry = RetryPolicy(initial_interval=600)

    async def claim(worker: Worker, id: str, error: Exception) -> None:
        async with worker.claim(id, retry=retry):
            raise error

    async with make() as worker:
        with pytest.raises(OSError, match="disk"):
            await claim(worker, "a", OSError("disk"))
        left = await client.describe("a")
        assert (left.state, left.last_failure) == (ActivityState.WAITING, "OSError: disk")
        with pytest.raises(GiveUp):
            await claim(worker, "b", GiveUp("never"))
        assert (await client.describe("b")).state is ActivityState.FAILED
        assert worker.stats.failed == 2


async def test_a_cancelled_body_hands_the_claim_back(make: Make, client: Client) -> None:
    inside = asyncio.Event()
    async with make() as worker:

        async def claim() -> None:
            async with worker.claim("a"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(claim())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = await client.describe("a")
        assert (left.state, left.failures) == (ActivityState.AVAILABLE, 0)


async def test_a_lost_claim_is_not_completed(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    async with make() as worker:

        async def claim() -> None:
            async with worker.claim("a") as task:
                server.expire(namespace, worker.instance_key)
                task.result = b"too late"
                await asyncio.Event().wait()

        with pytest.raises(ActivityLost):
            await claim()
        left = await client.describe("a")
        assert left.state is not ActivityState.COMPLETED
        assert worker.stats.lost == 1
        key = worker.instance_key
        until(lambda: not server.worker(namespace, key).cancel_activities)


async def test_a_heartbeat_confirms_a_claim(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    """The server would take an unconfirmed claim back."""
    server.configure(namespace, dispatch_timeout={"seconds": 1})
    async with make(lease=10) as worker, worker.claim("a") as task:
        begun = server.worker(namespace, worker.instance_key).sequence
        key = worker.instance_key
        until(lambda: server.worker(namespace, key).sequence > begun + 1)
        task.check()
        held = await client.describe("a")
        assert (held.state, held.ref.attempt) == (ActivityState.STARTED, 1)


async def test_a_claim_whose_answer_was_lost_is_repeated(
    server: LivenessServer, namespace: str, client: Client
) -> None:
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker:
            proxy.lose_answers("ClaimActivity", 2)
            proxy.lose_answers("CompleteActivity", 2)
            async with worker.claim("a") as task:
                assert task.attempt == 1
        assert (await client.describe("a")).state is ActivityState.COMPLETED


async def test_a_paused_worker_claims_nothing(server: LivenessServer, namespace: str, make: Make) -> None:
    async with make(instance_key="mine") as worker:
        server.admin.PauseWorkers(
            admin_pb2.PauseWorkersRequest(namespace=namespace, worker_instance_key="mine")
        )
        with pytest.raises(NoNewWork):
            await worker.claim("a").__aenter__()


async def test_a_claim_can_be_entered_only_once(make: Make) -> None:
    async with make() as worker:
        claim = worker.claim("a")
        async with claim:
            pass
        with pytest.raises(InvalidArgument):
            await claim.__aenter__()
