"""Schedule the activities: some at the start, some gradually, and some when the fault script needs busy workers."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random

from liveness.clock import Clock
from liveness.demo.dataset import make_block
from liveness.demo.plan import BLOCK_PREFIX, Plan
from liveness.demo.server_client import ServerClient


class Workload:
    def __init__(
        self, plan: Plan, folder: Path, server_client: ServerClient, clock: Clock, random: Random
    ) -> None:
        self._plan = plan
        self._server_client = server_client
        self._clock = clock
        width = len(str(plan.activities))
        self.activity_names = [f"{BLOCK_PREFIX}{number:0{width}}" for number in range(1, plan.activities + 1)]
        self._remaining = deque((name, random.randint(*plan.work_ms)) for name in self.activity_names)
        self._batch_size = max(plan.activities // 12, 1)
        self._reserved = self._batch_size * plan.fault_count
        """Activities kept back for the faults to come: a worker can be killed at work only if there is work."""
        for name in self.activity_names:
            make_block(folder, name, random)

    async def schedule_first(self) -> None:
        await self._schedule(len(self._remaining) // 4)

    async def schedule_gradually(self) -> None:
        gap_ms = self._plan.scheduling_ms / max(len(self._remaining) - self._reserved, 1)
        while len(self._remaining) > self._reserved:
            await self._schedule(1)
            await self._clock.sleep(gap_ms)

    async def schedule_batch(self) -> None:
        self._reserved -= self._batch_size
        await self._schedule(self._batch_size)

    async def schedule_rest(self) -> None:
        await self._schedule(len(self._remaining))

    async def _schedule(self, count: int) -> None:
        for _ in range(min(count, len(self._remaining))):
            await self._server_client.schedule(*self._remaining.popleft())
