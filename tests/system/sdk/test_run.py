"""A worker runs the activities that the server hands out."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

from liveness.sdk import ActivityState, Client, GiveUp, Quarantine, RetryLater, RetryPolicy, Task, Worker
from liveness.sdk.values import to_duration
from liveness.v1 import admin_pb2
from tests.system.sdk.running_worker import running, wait_finished
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, call_proxy, until

Make = Callable[..., Worker]
ONCE = RetryPolicy(maximum_attempts=1)
SOON = RetryPolicy(initial_interval=0.01, maximum_interval=0.01)


# -- the outcome of an attempt


async def test_the_server_records_the_results_of_handlers(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("double")
        async def double(task: Task) -> int:
            return 2 * task.json()["number"]

        @worker.activity("shout")
        def shout(task: Task) -> str:
            assert threading.current_thread() is not threading.main_thread()
            return task.input.decode().upper()

        async with running(worker):
            for number in range(20):
                await client.schedule("double", id=f"{number}", input={"number": number}, task_queue="queue")
            await client.schedule("shout", id="word", input="grün", task_queue="queue")
            for number in range(20):
                done = await wait_finished(client, "double", f"{number}")
                assert (done.state, done.json()) == (ActivityState.COMPLETED, 2 * number)
            assert (await wait_finished(client, "shout", "word")).result == "GRÜN".encode()
        assert worker.stats.completed == 21


async def test_a_handler_gets_its_task(make: Make, client: Client) -> None:
    seen: asyncio.Queue[Task] = asyncio.Queue()
    async with make() as worker:

        @worker.activity("look")
        async def look(task: Task) -> None:
            await seen.put(task)
            task.check()
            if task.attempt == 1:
                raise ValueError("the first time it never works")

        async with running(worker):
            await client.schedule("look", id="a", input=b"\x00", task_queue="queue", retry=SOON)
            await wait_finished(client, "look", "a")
            first, second = await seen.get(), await seen.get()
        assert (first.id, first.type, first.input, first.failures) == ("a", "look", b"\x00", 0)
        assert (second.attempt, second.failures) == (2, 1)
        assert second.last_failure == "ValueError: the first time it never works"
        assert second.ref.key == ("a", "-", "look", 2)


async def test_a_handler_gets_the_fencing_token_of_its_attempt(make: Make, client: Client) -> None:
    tokens = []
    async with make() as worker:

        @worker.activity("look")
        async def look(task: Task) -> None:
            tokens.append(task.fencing_token)
            if task.attempt < 3:
                raise RetryLater("again", after=0)

        async with running(worker):
            retry = RetryPolicy(initial_interval=600)
            await client.schedule("look", id="a", task_queue="queue", retry=retry)
            await wait_finished(client, "look", "a")
    assert tokens == [(1, 1), (2, 1), (3, 1)]


async def test_an_exception_fails_the_attempt(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("broken")
        async def broken(task: Task) -> None:
            raise KeyError("photo")

        @worker.activity("broken in a thread")
        def broken_in_a_thread(task: Task) -> None:
            raise OSError("disk")

        @worker.activity("hopeless")
        async def hopeless(task: Task) -> None:
            raise GiveUp("no such photo")

        @worker.activity("odd")
        async def odd(task: Task) -> None:
            raise Quarantine("somebody should look at this photo")

        @worker.activity("strange")
        async def strange(task: Task) -> object:
            return object()

        async with running(worker):
            for name in ("broken", "broken in a thread", "strange"):
                await client.schedule(name, id="a", task_queue="queue", retry=ONCE)
            for name in ("hopeless", "odd"):
                await client.schedule(name, id="a", task_queue="queue")
            failures = {
                name: await wait_finished(client, name, "a")
                for name in ("broken", "broken in a thread", "hopeless", "strange", "odd")
            }
        left = failures.pop("odd")
        assert (left.state, left.last_failure) == (
            ActivityState.QUARANTINED,
            "somebody should look at this photo",
        )
        assert {failure.state for failure in failures.values()} == {ActivityState.FAILED}
        assert failures["broken"].last_failure == "KeyError: 'photo'"
        assert failures["broken in a thread"].last_failure == "OSError: disk"
        assert failures["hopeless"].last_failure == "no such photo"
        assert "JSON" in failures["strange"].last_failure
        assert worker.stats.failed == 5


async def test_a_result_that_is_too_large_fails_the_activity_at_once(make: Make, client: Client) -> None:
    async with make() as worker:

        @worker.activity("fat")
        async def fat(task: Task) -> bytes:
            return bytes(1024 * 1024)

        async with running(worker):
            await client.schedule("fat", id="a", task_queue="queue", retry=SOON)
            done = await wait_finished(client, "fat", "a")
    assert (done.state, done.failures) == (ActivityState.FAILED, 1)
    assert "result" in done.last_failure


async def test_a_cancelled_activity_is_stopped_and_not_completed(make: Make, client: Client) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    async with make() as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with running(worker):
            await client.schedule("slow", id="a", task_queue="queue")
            await asyncio.wait_for(begun.wait(), SECONDS_MAX)
            assert await client.cancel("a", type="slow", reason="changed our minds")
            await asyncio.wait_for(stopped.wait(), SECONDS_MAX)
            assert (await client.describe("a", type="slow")).state is ActivityState.CANCELLED
        assert (worker.stats.lost, worker.stats.completed) == (1, 0)


async def test_the_completion_of_a_zombie_is_rejected(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    """A thread ignores its loss while another worker completes the activity."""
    begun, go_on = threading.Event(), threading.Event()
    async with make(instance_key="zombie") as zombie, make(instance_key="other") as other:

        @zombie.activity("slow")
        def slow(task: Task) -> str:
            begun.set()
            assert go_on.wait(SECONDS_MAX)
            return "zombie"

        @other.activity("slow")
        async def slow_too(task: Task) -> str:
            return "other"

        async with running(zombie):
            await client.schedule("slow", id="a", task_queue="queue", retry=SOON)
            assert await asyncio.to_thread(begun.wait, SECONDS_MAX)
            server.admin.PauseWorkers(
                admin_pb2.PauseWorkersRequest(namespace=namespace, worker_instance_key="zombie")
            )
            server.expire(namespace, "zombie")
            async with running(other):
                done = await wait_finished(client, "slow", "a")
            go_on.set()
            while not zombie.stats.lost:
                await asyncio.sleep(0.01)
        assert (done.result, done.ref.attempt) == (b"other", 2)
        assert (await client.describe("a", type="slow")).result == b"other"
        assert (zombie.stats.completed, zombie.stats.lost) == (0, 1)


async def test_lost_answers_run_nothing_twice(server: LivenessServer, namespace: str, client: Client) -> None:
    runs = 0
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker:

            @worker.activity("count")
            async def count(task: Task) -> None:
                nonlocal runs
                runs += 1

            proxy.lose_answers("CompleteActivity", 3)
            async with running(worker):
                await client.schedule("count", id="a", task_queue="queue")
                done = await wait_finished(client, "count", "a")
                while not worker.stats.completed:
                    await asyncio.sleep(0.01)
            assert (done.state, done.ref.attempt, runs) == (ActivityState.COMPLETED, 1, 1)
            assert worker.stats.lost == 0


async def test_an_activity_whose_hand_out_was_lost_still_runs(
    server: LivenessServer, namespace: str, client: Client
) -> None:
    server.configure(namespace, dispatch_timeout=to_duration(1))
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=15) as worker:

            @worker.activity("count")
            async def count(task: Task) -> int:
                return task.attempt

            await client.schedule("count", id="a", task_queue="queue")
            proxy.lose_answers("PollActivity", 1)
            async with running(worker):
                done = await wait_finished(client, "count", "a")
            assert done.state is ActivityState.COMPLETED
            assert int(done.result) > 1


async def test_a_worker_runs_no_more_activities_at_once_than_it_may(make: Make, client: Client) -> None:
    now, most = 0, 0
    async with make(max_concurrent=3) as worker:

        @worker.activity("busy")
        async def busy(task: Task) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

        for number in range(12):
            await client.schedule("busy", id=f"{number}", task_queue="queue")
        async with running(worker):
            for number in range(12):
                await wait_finished(client, "busy", f"{number}")
    assert most == 3


async def test_completed_activities_leave_no_binding(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    """Confirmations and completions cross each other; the shutdown must find nothing to reschedule."""
    async with make(instance_key="mine", max_concurrent=20) as worker:

        @worker.activity("quick")
        async def quick(task: Task) -> None:
            await asyncio.sleep(int(task.id) % 7 * 0.02)

        async with running(worker):
            for number in range(60):
                await client.schedule("quick", id=f"{number}", task_queue="queue")
            for number in range(60):
                await wait_finished(client, "quick", f"{number}")
            until(lambda: not server.bound(namespace, "mine"))
    assert worker.stats.completed == 60
    seen = server.worker(namespace, "mine")
    assert (seen.successes, seen.errors, len(seen.cancel_activities)) == (60, 0, 0)


# -- loops and threads


async def test_a_frozen_event_loop_keeps_the_lease_and_is_shown(
    server: LivenessServer, namespace: str, make: Make, client: Client
) -> None:
    async with make(instance_key="mine", lease=3) as worker:

        @worker.activity("freeze")
        async def freeze(task: Task) -> int:
            """Block the loop until the server shows it, and for a few leases more."""
            begun = until(lambda: server.worker(namespace, "mine").sequence)
            until(lambda: server.worker(namespace, "mine").loop_lag.ToMilliseconds() >= 1_000)
            until(lambda: server.worker(namespace, "mine").sequence > begun + 3)
            task.check()
            return server.worker(namespace, "mine").lease_epoch

        async with running(worker):
            await client.schedule("freeze", id="a", task_queue="queue")
            done = await wait_finished(client, "freeze", "a")
            assert (done.state, done.result) == (ActivityState.COMPLETED, b"1")
            while server.worker(namespace, "mine").HasField("loop_lag"):
                await asyncio.sleep(0.02)


async def test_a_blocking_handler_does_not_block_the_loop(make: Make, client: Client) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with make() as worker:

        @worker.activity("block")
        def block(task: Task) -> None:
            begun.set()
            assert go_on.wait(SECONDS_MAX)

        async with running(worker):
            await client.schedule("block", id="a", task_queue="queue", retry=ONCE)
            assert await asyncio.to_thread(begun.wait, SECONDS_MAX)
            go_on.set()
            assert (await wait_finished(client, "block", "a")).state is ActivityState.COMPLETED


def test_a_program_without_an_event_loop_can_run_activities(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    with Client(server.address, namespace=namespace).blocking as client, make() as worker:

        @worker.activity("last")
        def last(task: Task) -> str:
            worker.stop()
            return "done"

        client.schedule("last", id="a", task_queue="queue")
        worker.run_blocking()
        assert client.wait("a", type="last", timeout=SECONDS_MAX).result == b"done"


async def test_a_run_survives_a_restart_of_the_server(own_server: LivenessServer) -> None:
    async with (
        Client(own_server.address) as client,
        Worker(own_server.address, task_queue="queue", lease=600, disconnect_grace=300) as worker,
    ):

        @worker.activity("echo")
        async def echo(task: Task) -> bytes:
            return task.input

        async with running(worker):
            for round_ in range(2):
                await client.schedule("echo", id=f"{round_}", input="x", task_queue="queue")
                assert (await wait_finished(client, "echo", f"{round_}")).result == b"x"
                own_server.end(signal.SIGKILL)
                own_server.start()
            assert worker.lease_epoch == 1
