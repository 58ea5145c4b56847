"""The clocks of one process: they run slightly fast or slow, and the wall clock jumps."""

from __future__ import annotations

import asyncio

from tests.simulation.loop import SimulatedLoop

WALL_MS = 1_750_000_000_000


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, rate: float = 1.0, zero_ms: int = 0) -> None:
        """`rate`: the speed. `zero_ms`: the monotonic clock's reading at the start, which means nothing."""
        self._loop = loop
        self._rate = rate
        self._zero_ms = zero_ms
        self.wall_offset_ms = 0

    def monotonic_ms(self) -> int:
        return self._zero_ms + int(self._loop.time() * self._rate * 1_000 + 1e-6)

    def wall_ms(self) -> int:
        return WALL_MS + self.wall_offset_ms + int(self._loop.time() * self._rate * 1_000 + 1e-6)

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(max(0.0, ms) / 1_000 / self._rate)
