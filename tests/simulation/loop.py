"""One event loop for a whole world: virtual time, no threads, no sockets, and processes that stop and die.

Each callback belongs to the process in whose context it was made. Callbacks of a stopped process wait until it
resumes; callbacks of a killed process never run. Time moves only when nothing is left to do at the present moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from random import Random
from typing import Any

_process: ContextVar[Process | None] = ContextVar("process", default=None)

TIMER_LATE_S_MAX = 0.0002
"""Timers of the same moment fire in any order, as they do on a real machine."""


class Process:
    """A process on its own machine."""

    def __init__(self, loop: SimulatedLoop, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.stopped = False
        self.on_death: list[Callable[[], None]] = []
        self._loop = loop
        self._backlog: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(work, name=self.name, context=self.context.copy())

    def at(self, when: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_at(when, callback, *args, context=self.context.copy())

    def soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self.context.copy())

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        self.stopped = False
        backlog, self._backlog = self._backlog, []
        if self.alive:
            self._loop.resume(backlog)

    def kill(self) -> None:
        """SIGKILL: none of its code runs any more, not even `finally` blocks."""
        if self.alive:
            self.alive = False
            self._backlog.clear()
            for tell in self.on_death:
                tell()

    def keep(self, handle: asyncio.Handle) -> None:
        self._backlog.append(handle)


def current_process() -> Process | None:
    """Return the process whose code runs now."""
    return _process.get()


class _Handle(asyncio.Handle):
    __slots__ = ("process",)

    process: Process | None
    _context: Context


class _Timer(asyncio.TimerHandle):
    __slots__ = ("process",)

    process: Process | None
    _context: Context


class Deadlock(Exception):
    """Nothing is left to do, and no timer is set."""


class SimulatedLoop(asyncio.BaseEventLoop):
    _ready: deque[Any]
    _stopping: bool

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._now = 1_000.0
        self._random = random
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = 0
        self.steps = 0
        self.ended = False
        self.until = float("inf")
        """The time at which the loop stops.

        It is no timer, because a timer would change the random numbers of others.
        """
        self.failures: list[str] = []
        """Exceptions that no task handled."""
        self.set_exception_handler(self._note)
        self.set_task_factory(_keep_task(self))

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.process = handle._context.get(_process)
        if not self.ended:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.process = timer._context.get(_process)
        if not self.ended:
            self._count += 1
            late_s = self._random.random() * TIMER_LATE_S_MAX
            heappush(self._timers, (max(when, self._now) + late_s, self._count, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def resume(self, backlog: list[asyncio.Handle]) -> None:
        self._ready.extend(backlog)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the loop skips it when its time comes

    def _run_once(self) -> None:
        ready = self._ready
        if not ready and not self._stopping:
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None:
                if not process.alive:
                    continue
                if process.stopped:
                    process.keep(handle)
                    continue
            self.steps += 1
            handle._run()

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers:
            raise Deadlock
        self._now = timers[0][0]
        if self._now > self.until:
            self.stop()
        while timers and timers[0][0] <= self._now:
            timer = heappop(timers)[2]
            if not timer._cancelled:
                self._ready.append(timer)

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.ended or "was destroyed but it is pending" in context["message"]:
            return
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")

    def discard_tasks(self) -> None:
        """Empty the remaining tasks after the end, so that garbage collection runs none of their code."""
        self.ended = True
        self._ready.clear()
        self._timers.clear()
        self.close()


def _keep_task(loop: SimulatedLoop) -> Any:
    """Keep all tasks until the end.

    A task of a killed process that is collected earlier would run its `finally` blocks, which a killed process does
    not do.
    """
    kept: list[Any] = []

    def make(_: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        if len(kept) > KEPT_MAX:
            kept[:] = [task for task in kept if not task.done()]
        kept.append(task)
        return task

    return make


KEPT_MAX = 20_000
