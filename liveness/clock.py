"""The only reader of time. Everything else is handed a `Clock`, so that tests and simulations control time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Milliseconds that never go back. Only differences have a meaning."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump when the machine's clock is set."""

    async def sleep(self, ms: float) -> None: ...


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1_000)


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since this call. For reports only: nothing may be decided by it."""
    started_s = time.perf_counter()
    return lambda: time.perf_counter() - started_s


async def wait_or_timeout(future: asyncio.Future[Any], clock: Clock, timeout_ms: float) -> bool:
    """Wait until `future` is done or the time is over, and leave the future as it is. Returns whether it is done."""
    timer = asyncio.ensure_future(clock.sleep(timeout_ms))
    try:
        await asyncio.wait((future, timer), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return future.done()


async def wait_for_event(event: asyncio.Event, clock: Clock, timeout_ms: float) -> bool:
    """Wait until `event` is set or the time is over. Returns whether it is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        return await wait_or_timeout(waiting, clock, timeout_ms)
    finally:
        waiting.cancel()


class ManualClock:
    """Time for tests and simulations: it stands still until moved."""

    def __init__(self, wall_ms: int = 1_750_000_000_000) -> None:
        self._monotonic_ms = 1_000
        self._wall_ms = wall_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    async def sleep(self, ms: float) -> None:
        waker = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic_ms + ms, waker))
        await waker

    def move(self, ms: int) -> None:
        self._monotonic_ms += ms
        self._wall_ms += ms
        due = [waker for at_ms, waker in self._sleepers if at_ms <= self._monotonic_ms]
        self._sleepers = [(at_ms, waker) for at_ms, waker in self._sleepers if at_ms > self._monotonic_ms]
        for waker in due:
            if not waker.done():
                waker.set_result(None)

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP may do."""
        self._wall_ms += ms
