"""The simulated event loop keeps order, stops and kills processes, and has its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import Process, SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop(Random(1))
    yield made
    made.discard_tasks()


def live(loop: SimulatedLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(work)


def test_time_passes_only_while_all_tasks_wait(loop: SimulatedLoop) -> None:
    async def sleep() -> None:
        began = loop.time()
        await asyncio.sleep(3_600)
        assert 3_600 <= loop.time() - began < 3_600.01

    live(loop, sleep())


def test_a_stopped_process_runs_its_due_callbacks_after_it_resumes(loop: SimulatedLoop) -> None:
    process = Process(loop, "one", "host")
    seen: list[float] = []

    async def work() -> None:
        await asyncio.sleep(1)
        seen.append(loop.time())

    async def fault_injector() -> None:
        process.spawn(work())
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(10)
        assert not seen
        process.resume()
        await asyncio.sleep(0.1)
        assert len(seen) == 1

    live(loop, fault_injector())


def test_a_killed_process_runs_no_code_not_even_finally_blocks(loop: SimulatedLoop) -> None:
    process = Process(loop, "one", "host")
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    async def fault_injector() -> None:
        process.spawn(work())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(10)

    live(loop, fault_injector())
    assert not seen


def test_a_task_belongs_to_the_process_that_started_it(loop: SimulatedLoop) -> None:
    process = Process(loop, "one", "host")
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append("child")

    async def work() -> None:
        loop.call_later(1, seen.append, "timer")
        await asyncio.gather(loop.create_task(child()), asyncio.sleep(2))

    async def fault_injector() -> None:
        process.spawn(work())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(10)

    live(loop, fault_injector())
    assert not seen
