"""Background tasks: failures are observed, and closing ends everything."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.clock import ManualClock, wait_for_event, wait_or_timeout


async def fail(error: BaseException) -> None:
    raise error


async def test_a_failed_task_is_logged_with_its_component_and_reported() -> None:
    reported: list[BaseException] = []
    tasks = BackgroundTasks("reader", on_failure=reported.append)
    error = ValueError("a bug")
    with capture_logs() as logs:
        tasks.start(fail(error))
        await tasks.wait()
    assert reported == [error]
    [line] = [each for each in logs if each.get("component") == "reader"]  # others log, too
    assert (line["event"], line["component"], line["exc_info"]) == ("background task failed", "reader", error)


async def test_a_task_that_ends_as_cancelled_although_nobody_cancelled_it_has_failed() -> None:
    reported: list[BaseException] = []
    tasks = BackgroundTasks("reader", on_failure=reported.append)
    tasks.start(fail(asyncio.CancelledError()))
    await tasks.wait()
    assert [type(error) for error in reported] == [asyncio.CancelledError]


async def test_a_task_that_succeeds_or_is_cancelled_is_no_failure() -> None:
    reported: list[BaseException] = []
    tasks = BackgroundTasks("reader", on_failure=reported.append)
    tasks.start(asyncio.sleep(0))
    cancelled = tasks.start(asyncio.Event().wait())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    cancelled.cancel()
    await tasks.wait()
    assert reported == []


async def test_close_ends_all_tasks_and_waits_for_their_cleanup() -> None:
    tasks = BackgroundTasks("reader")
    cleaned_up: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(number)

    started = [tasks.start(work(number)) for number in range(3)]
    await asyncio.sleep(0)
    await tasks.close()
    assert tasks.is_idle
    assert all(task.cancelled() for task in started)
    assert sorted(cleaned_up) == [0, 1, 2]


async def test_close_ends_tasks_that_ending_tasks_start() -> None:
    tasks = BackgroundTasks("reader")
    ran: list[str] = []

    async def late() -> None:
        ran.append("late")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start(late())

    tasks.start(work())
    await asyncio.sleep(0)
    await tasks.close()
    assert tasks.is_idle
    assert ran == []


async def test_work_that_is_started_after_close_never_runs() -> None:
    tasks = BackgroundTasks("reader")
    await tasks.close()
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    task = tasks.start(work())
    await tasks.wait()
    assert task.cancelled()
    assert ran == []


async def test_cancelled_tasks_can_be_followed_by_others() -> None:
    tasks = BackgroundTasks("reader")
    tasks.start(asyncio.Event().wait())  # type: ignore[arg-type]
    tasks.cancel()
    await tasks.wait()
    ended = tasks.start(asyncio.sleep(0))
    await tasks.wait()
    assert not ended.cancelled()


@pytest.mark.parametrize("is_set", [True, False])
async def test_waiting_for_an_event_ends_with_the_event_or_with_the_time(is_set: bool) -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, clock, 100))
    await asyncio.sleep(0.001)
    assert not waiting.done()
    if is_set:
        event.set()
    else:
        clock.move(100)
    assert await waiting is is_set


async def test_a_future_that_was_waited_for_in_vain_is_not_cancelled() -> None:
    clock = ManualClock()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_or_timeout(future, clock, 100))
    await asyncio.sleep(0.001)
    clock.move(100)
    assert await waiting is False
    assert not future.done()


def test_a_repeated_warning_is_logged_at_once_then_seldom_with_a_count_and_at_its_end() -> None:
    clock = ManualClock()
    warning = RepeatedWarning(structlog.get_logger(), "cannot write", clock)
    with capture_logs() as logs:
        for _ in range(150):  # 75 s
            warning.warn(why="full")
            clock.move(500)
        warning.resolve()
        warning.resolve()
        warning.warn(why="full again")
    assert [(line["event"], line["log_level"], line.get("times"), line.get("for_s")) for line in logs] == [
        ("cannot write", "warning", None, None),
        ("cannot write", "warning", 60, 30),
        ("cannot write", "warning", 60, 60),
        ("works again", "info", None, 75),
        ("cannot write", "warning", None, None),
    ]
