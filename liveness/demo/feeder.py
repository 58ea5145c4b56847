"""Makes the work known to the server: some at once, some by and by, and some when the plot calls for busy workers."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random

from liveness.clock import Clock
from liveness.demo.dataset import make_block
from liveness.demo.plan import BLOCK, Plan
from liveness.demo.record import Record


class Feeder:
    def __init__(self, plan: Plan, folder: Path, record: Record, clock: Clock, random: Random) -> None:
        self._plan = plan
        self._record = record
        self._clock = clock
        width = len(str(plan.activities))
        self.names = [f"{BLOCK}{number:0{width}}" for number in range(1, plan.activities + 1)]
        self._left = deque((name, random.randint(*plan.work_ms)) for name in self.names)
        self._portion = max(plan.activities // 12, 1)
        self._kept = self._portion * plan.blows
        """For the blows to come: nobody can be killed at work when there is none."""
        for name in self.names:
            make_block(folder, name, random)

    async def begin(self) -> None:
        await self._give(len(self._left) // 4)

    async def trickle(self) -> None:
        gap_ms = self._plan.scheduling_ms / max(len(self._left) - self._kept, 1)
        while len(self._left) > self._kept:
            await self._give(1)
            await self._clock.sleep(gap_ms)

    async def give_portion(self) -> None:
        self._kept -= self._portion
        await self._give(self._portion)

    async def give_rest(self) -> None:
        await self._give(len(self._left))

    async def _give(self, count: int) -> None:
        for _ in range(min(count, len(self._left))):
            await self._record.schedule(*self._left.popleft())
