"""Measures the steps of the event loop: how much processor time each callback and each step of a task takes.

    with LoopSteps() as steps:
        ...
    print(steps.longest)

Processor time of the loop's own thread, because the machine may be busy with other things.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import events
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

STEP_MS_MAX = 50
"""No step may take longer, whatever a client sends."""
_LISTED_MS_MIN = 5


class Step(NamedTuple):
    ms: float
    what: str
    task: str = ""
    """The name of the task that took the step."""


class LoopSteps:
    """Records the steps of all loops in this thread while it is entered."""

    def __init__(self) -> None:
        self.longest = Step(0.0, "")
        self.slow: list[Step] = []
        """All steps of some length, in order."""
        self._original: Callable[..., Any] = events.Handle._run

    def clear(self) -> None:
        self.longest = Step(0.0, "")
        self.slow.clear()

    def __enter__(self) -> LoopSteps:
        original, used_ns = self._original, time.thread_time_ns

        def run(handle: Any) -> Any:
            # Read before: a task forgets its coroutine when it ends.
            callback = handle._callback
            began_ns = used_ns()
            try:
                return original(handle)
            finally:
                ms = (used_ns() - began_ns) / 1e6
                if ms > _LISTED_MS_MIN:
                    self._add(Step(ms, *_names(callback)))

        events.Handle._run = run  # type: ignore[method-assign, assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        events.Handle._run = self._original  # type: ignore[method-assign]

    def _add(self, step: Step) -> None:
        self.slow.append(step)
        if step.ms > self.longest.ms:
            self.longest = step


def _names(callback: Any) -> tuple[str, str]:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return str(getattr(coroutine, "__qualname__", coroutine)), task.get_name()
    return str(getattr(callback, "__qualname__", callback)), ""
