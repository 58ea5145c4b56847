"""The only reader of time. Everything else is handed a `Clock`, so that tests and simulations own time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Never goes back; its zero means nothing."""

    def wall_ms(self) -> int:
        """Since 1970, for people."""

    async def sleep(self, ms: float) -> None: ...


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1_000)
