"""Background work: the asyncio tasks that a component starts and that outlive the function that started them.

Each component owns one `BackgroundTasks`. It observes every failure, so that no exception is lost with its task, and its
owner ends all of its tasks with `close`. `RepeatedWarning` logs what such work cannot do and tries again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from liveness.clock import Clock

logger = structlog.get_logger("liveness.background")

REPEAT_INTERVAL_MS = 30_000


class BackgroundTasks:
    def __init__(
        self, component: str, on_failure: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        """`component`: named in the log when a task fails. `on_failure`: called with the exception of each failed task."""
        self._component = component
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return all(task.done() for task in self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else. After `close` it is cancelled before its first step."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        if self._is_closed:
            task.cancel()
        return task

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in tuple(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Wait until no task runs. Failures have been reported by then and are not raised here."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def wait_any(self) -> None:
        """Wait until one of the tasks has ended."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self._is_closed = True
        self.cancel()
        await self.wait()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error: BaseException | None
        if not task.cancelled():
            error = task.exception()
        else:
            # A library may end a task with CancelledError although no code cancelled it. The work did not get done.
            error = None if task.cancelling() else asyncio.CancelledError("cancelled without a request")
        if error is not None:
            logger.error("background task failed", component=self._component, exc_info=error)
            self._on_failure(error)


class RepeatedWarning:
    """A warning that would be logged several times a second: it is logged at once, then at most every 30 s with the number of
    times since, and again when the work succeeds."""

    def __init__(self, logger: Any, event: str, clock: Clock) -> None:
        self._logger = logger
        self._event = event
        self._clock = clock
        self._since_ms: int | None = None
        """When it was first logged; None while the work succeeds."""
        self._logged_ms = 0
        self._times = 0
        """How often it occurred since it was last logged."""

    def warn(self, **fields: object) -> None:
        now_ms = self._clock.monotonic_ms()
        self._times += 1
        if self._since_ms is None:
            self._since_ms = now_ms
            self._logger.warning(self._event, **fields)
        elif now_ms - self._logged_ms >= REPEAT_INTERVAL_MS:
            seconds = (now_ms - self._since_ms) // 1_000
            self._logger.warning(self._event, **fields, times=self._times, for_s=seconds)
        else:
            return
        self._logged_ms, self._times = now_ms, 0

    def resolve(self) -> None:
        """Note that the work succeeded."""
        if self._since_ms is not None:
            seconds = (self._clock.monotonic_ms() - self._since_ms) // 1_000
            self._logger.info("works again", was=self._event, for_s=seconds)
            self._since_ms, self._times = None, 0
