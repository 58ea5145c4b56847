"""Works off the stored queues: claim → validate → execute → record, each task on its own.

A shard's queue is worked by its owner alone, batch by batch. Within a batch every task succeeds, is retried with
backoff or is dead-lettered by itself: one poison activity blocks nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import structlog

from liveness.domain.activity import Activity
from liveness.domain.errors import Unavailable
from liveness.shard.custody import Custody
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.store.api import StoredTask, TaskState, TaskUpdate
from liveness.store.errors import StoreError
from tasks.activity_reschedule import ActivityReschedule, key_of
from tasks.contract import Done, Failed, QueueOutcome, Stale

logger = structlog.get_logger("liveness.tasks")

BATCH = 500
BACKOFF_MS_MIN = 500
BACKOFF_MS_MAX = 300_000
ERROR_CHARS_MAX = 500
HAND_ON_TIMEOUT_S = 30
"""A sink that hangs holds up the tasks after it for no longer than this."""


def backoff_ms(attempts: int, random: Random) -> int:
    """Doubles with each attempt, spread over half its length, so that what failed together does not return together."""
    ceiling = min(BACKOFF_MS_MIN * 2 ** min(attempts - 1, 30), BACKOFF_MS_MAX)
    return int(ceiling * random.uniform(0.5, 1.0))


class QueueRunner:
    def __init__(
        self,
        node: Node,
        custody: Custody,
        reschedule: ActivityReschedule,
        *,
        attempts_max: int,
        random: Random,
    ) -> None:
        self._node = node
        self._custody = custody
        self._reschedule = reschedule
        self._attempts_max = attempts_max
        self._random = random
        self.hand_on_timeout_s: float = HAND_ON_TIMEOUT_S
        self._next_due_ms: dict[int, int] = {}
        """Per shard, on its observed clock; 0 when it has work now."""
        self._look_everywhere = False
        self._wake = asyncio.Event()
        node.on_opened.append(self._on_opened)
        node.on_committed.append(self._on_committed)
        node.on_pulse.append(self._on_pulse)

    def _on_opened(self, shard: Shard) -> None:
        # A commit that took place without an answer may have left tasks with any shard.
        self._look_everywhere = True
        self._wake.set()

    def wake(self, shard_id: int) -> None:
        self._next_due_ms[shard_id] = 0
        self._wake.set()

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        for part in handed:
            for new in part.commit.new_tasks:
                self.wake(new.shard_id)
            if part.commit.task_updates:
                self.wake(part.shard.id)

    def _on_pulse(self) -> None:
        if self._due_shards():
            self._wake.set()

    def _due_shards(self) -> list[Shard]:
        if self._look_everywhere:
            self._look_everywhere = False
            self._next_due_ms = {shard.id: 0 for shard in self._node.shards()}
        return [
            shard
            for shard in self._node.shards()
            if (due_ms := self._next_due_ms.get(shard.id)) is not None and due_ms <= shard.now_ms()
        ]

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.work_off()

    async def work_off(self) -> None:
        """Until no task of a serving shard is due."""
        while shards := self._due_shards():
            for shard in shards:
                try:
                    await self._work_off_shard(shard)
                except (Unavailable, StoreError) as error:
                    # The shard is being re-read, or the store cannot be read; opening it again wakes this runner.
                    self._next_due_ms[shard.id] = shard.now_ms() + BACKOFF_MS_MIN
                    logger.info("queue interrupted", shard=shard.id, why=str(error))

    async def _work_off_shard(self, shard: Shard) -> None:
        self._next_due_ms.pop(shard.id, None)
        batch = await self._node.store.due_tasks(shard.id, shard.now_ms(), BATCH)
        if batch:
            await self._execute(shard, batch)
            self.wake(shard.id)
            return
        next_due_ms = await self._node.store.next_due_ms(shard.id)
        if next_due_ms is not None and shard.id not in self._next_due_ms:
            self._next_due_ms[shard.id] = next_due_ms

    async def _execute(self, shard: Shard, batch: Sequence[StoredTask]) -> None:
        outcomes: dict[int, QueueOutcome] = {}
        released: list[tuple[StoredTask, Activity]] = []
        await self._custody.recall([key_of(stored.task) for stored in batch])
        for stored in batch:
            if not self._reschedule.validate(stored.task, shard):
                outcomes[stored.task_id] = Stale()
            else:
                policy = self._node.policies.of(stored.task.namespace)
                released.append((stored, self._reschedule.release(stored.task, shard, policy)))
        await self._node.durable(shard)
        handed_on = await asyncio.gather(*(self._hand_on(stored, activity) for stored, activity in released))
        for (stored, _), outcome in zip(released, handed_on, strict=True):
            outcomes[stored.task_id] = outcome
            if isinstance(outcome, Done):
                self._reschedule.handed_on(stored.task, shard)
        for stored in batch:
            shard.update_task(self._record(stored, outcomes[stored.task_id], shard.now_ms()))
        await self._node.durable(shard)

    async def _hand_on(self, stored: StoredTask, activity: Activity) -> QueueOutcome:
        try:
            async with asyncio.timeout(self.hand_on_timeout_s):
                await self._reschedule.hand_on(stored.task, activity)
        except Exception as error:  # noqa: BLE001  # the one catch-all: whatever went wrong is recorded with the task
            return Failed(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
        return Done()

    def _record(self, stored: StoredTask, outcome: QueueOutcome, now_ms: int) -> TaskUpdate:
        attempts = stored.attempts + 1
        if not isinstance(outcome, Failed):
            return TaskUpdate(stored.task_id, TaskState.DONE, stored.due_ms, attempts, "")
        dead = attempts >= self._attempts_max
        logger.warning(
            "task dead-lettered" if dead else "task failed",
            task=stored.task_id,
            attempts=attempts,
            why=outcome.error,
        )
        state = TaskState.DEAD_LETTERED if dead else TaskState.RETRYING
        due_ms = now_ms + backoff_ms(attempts, self._random)
        return TaskUpdate(stored.task_id, state, due_ms, attempts, outcome.error)
