"""The attempts of an activity as a client sees them."""

from __future__ import annotations

import asyncio

from liveness.sdk import Client, RetryPolicy, Task
from tests.system.sdk.conftest import Make


def break_something(depth: int) -> None:
    if depth:
        break_something(depth - 1)
    raise OSError("disk")


async def test_a_failed_attempt_tells_where_it_failed(make: Make, client: Client) -> None:
    async with make(instance_key="w") as worker:

        @worker.activity("crawl")
        async def crawl(task: Task) -> None:
            if task.attempt == 1:
                break_something(2)
            if task.attempt == 2:
                break_something(900)

        retry = RetryPolicy(initial_interval=0.01)
        await client.schedule("crawl", id="a", task_queue="queue", retry=retry)
        running = asyncio.create_task(worker.run(handle_signals=False))
        async with asyncio.timeout(60):
            await client.wait("a", type="crawl")
        worker.stop()
        await running
    short, deep, done = await client.attempts("a", type="crawl")
    assert (short.outcome, short.worker, short.message) == ("failed", "w", "OSError: disk")
    assert "in break_something" in short.stack_trace
    assert "sdk/runner.py" not in short.stack_trace, "only the program's own frames"
    assert short.stack_trace.endswith("OSError: disk\n")
    assert deep.stack_trace.endswith("OSError: disk\n")
    assert (done.outcome, done.stack_trace) == ("completed", "")
    assert done.ended is not None
    assert short.ended is not None
    assert short.ended <= done.ended
