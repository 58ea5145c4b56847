"""Works off the stored queues: claim → validate → execute → record, each task on its own.

A shard's queue is worked by its owner alone, batch by batch. Within a batch every task succeeds, is retried with
backoff or is dead-lettered by itself: one poison activity blocks nobody, and neither does a sink that hangs.

A sink that says of itself that it is away costs no task a try. Those that were to go there are parked, each with one
write, and looked at again when it is back; in the meantime nobody asks for them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random

import structlog

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.errors import Unavailable
from liveness.shard.custody import Custody
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.store.api import PARKED_MS, StoredTask, TaskState, TaskUpdate
from liveness.store.errors import StoreError
from tasks.activity_reschedule import ActivityReschedule, key_of
from tasks.contract import Done, Failed, Postponed, QueueOutcome, Stale
from tasks.sinks import SinkAway, deliveries_max

logger = structlog.get_logger("liveness.tasks")

BATCH = 500
BACKOFF_MS_MIN = 500
BACKOFF_MS_MAX = 300_000
ERROR_CHARS_MAX = 500
HAND_ON_TIMEOUT_S = 30
YIELDS_MS = 1_000
"""While leases are over that wait to be ended, so long is nothing done here: work cannot move before it is known to be
lost. Then comes a batch of each shard, so that it moves all the same."""
ON_THEIR_WAY_MAX = 5_000
"""Of one shard; more are left in the store until some have arrived."""


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
        deaths_wait: Callable[[], bool] = lambda: False,
        sink_is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`deaths_wait`: whether leases are over that could not be ended yet. `sink_is_away`: whether parked tasks must go
        on waiting. Who knows that it is back calls `look_everywhere`."""
        self._node = node
        self._custody = custody
        self._reschedule = reschedule
        self._attempts_max = attempts_max
        self._random = random
        self._deaths_wait = deaths_wait
        self._sink_is_away = sink_is_away
        self._patience_ends_ms: int | None = None
        """While leases wait to be ended."""
        self.hand_on_timeout_s: float = HAND_ON_TIMEOUT_S
        self._next_due_ms: dict[int, int] = {}
        """Per shard, on its observed clock; 0 when it has work now."""
        self._look_everywhere = False
        self._working = asyncio.Lock()
        self._slots: dict[int, asyncio.Semaphore] = {}
        """By how many there are: sinks that take equally many at a time share them."""
        self._deliveries: set[asyncio.Task[None]] = set()
        self._on_their_way: defaultdict[int, set[int]] = defaultdict(set)
        """Tasks, by shard, whose activity a sink is being given."""
        self._wake = asyncio.Event()
        self.wake_elsewhere: Callable[[set[int]], None] = lambda shard_ids: None
        """Told of queues of other nodes' shards that were given tasks."""
        self.on_tried: Callable[[StoredTask, TaskUpdate, str], None] = lambda stored, update, via: None
        """Told of each try whose outcome is durable, and who was to take the activity: `matching` or a `sink`."""
        node.on_opened.append(self._on_opened)
        node.on_committed.append(self._on_committed)
        node.on_pulse.append(self._on_pulse)

    def _on_opened(self, shard: Shard) -> None:
        # A commit that took place without an answer may have left tasks with any shard.
        self.look_everywhere()

    def look_everywhere(self) -> None:
        self._look_everywhere = True
        self._wake.set()

    def wake(self, shard_id: int) -> None:
        self._next_due_ms[shard_id] = 0
        self._wake.set()

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        elsewhere: set[int] = set()
        for part in handed:
            for shard_id in {id for new in part.commit.new_tasks for id in new.shard_ids}:
                if self._node.serves(shard_id):
                    self.wake(shard_id)
                else:
                    elsewhere.add(shard_id)
            if part.commit.task_updates:
                self.wake(part.shard.id)
        if elsewhere:
            self.wake_elsewhere(elsewhere)

    async def look_for_new(self) -> None:
        """Wake the queues that were given tasks by other nodes, should their word not have come."""
        owned = [shard.id for shard in self._node.shards()]
        for shard_id in await self._node.store.shards_with_new_tasks(owned):
            self.wake(shard_id)

    def _on_pulse(self) -> None:
        if self._due_shards():
            self._wake.set()

    def _due_shards(self) -> list[Shard]:
        if self._yields():
            return []
        if self._look_everywhere:
            self._look_everywhere = False
            self._next_due_ms = {shard.id: 0 for shard in self._node.shards()}
        return [
            shard
            for shard in self._node.shards()
            if (due_ms := self._next_due_ms.get(shard.id)) is not None and due_ms <= shard.now_ms()
        ]

    def _yields(self) -> bool:
        if not self._deaths_wait():
            self._patience_ends_ms = None
            return False
        now_ms = self._node.clock.monotonic_ms()
        if self._patience_ends_ms is None:
            self._patience_ends_ms = now_ms + YIELDS_MS
        return now_ms < self._patience_ends_ms

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._work_off_due()
        finally:
            self._drop_deliveries()

    async def work_off(self) -> None:
        """Until no task of a serving shard is due and none is on its way."""
        try:
            await self._work_off_due()
            while self._deliveries:
                await asyncio.wait(self._deliveries, return_when=asyncio.FIRST_COMPLETED)
                await self._work_off_due()
        except BaseException:
            self._drop_deliveries()
            raise

    def _drop_deliveries(self) -> None:
        """What was on its way is due still, and is found again."""
        for delivery in self._deliveries:
            delivery.cancel()

    async def _work_off_due(self) -> None:
        async with self._working:  # tests work it off by hand while it runs
            while shards := self._due_shards():
                self._patience_ends_ms = None
                for shard in shards:
                    try:
                        await self._work_off_shard(shard)
                    except (Unavailable, StoreError) as error:
                        # Being re-read, or not readable; that it is opened again wakes this runner.
                        self._next_due_ms[shard.id] = shard.now_ms() + BACKOFF_MS_MIN
                        logger.info("queue interrupted", shard=shard.id, why=str(error))

    async def _work_off_shard(self, shard: Shard) -> None:
        self._next_due_ms.pop(shard.id, None)
        # As of before the read: one that arrives meanwhile is recorded, but the read may not know of it.
        on_their_way = set(self._on_their_way[shard.id])
        if len(on_their_way) >= ON_THEIR_WAY_MAX:
            return  # the next that arrives wakes this shard
        now_ms = shard.now_ms()
        due = await self._node.store.due_tasks(
            shard.id, now_ms, BATCH + len(on_their_way), parked=not self._sink_is_away()
        )
        batch = [stored for stored in due if stored.task_id not in on_their_way]
        if batch:
            await self._execute(shard, batch)
            self.wake(shard.id)
            return
        next_due_ms = await self._node.store.next_due_ms(shard.id, now_ms if due else -1)
        if next_due_ms is not None and shard.id not in self._next_due_ms:
            self._next_due_ms[shard.id] = next_due_ms

    async def _execute(self, shard: Shard, batch: Sequence[StoredTask]) -> None:
        """Take the activities from their workers; what is our own is done with that, the rest is sent on its way."""
        outcomes: dict[int, QueueOutcome] = {}
        leaving: list[tuple[StoredTask, Activity]] = []
        await self._custody.recall([key_of(stored.task) for stored in batch])
        for stored in batch:
            if not self._reschedule.validate(stored.task, shard):
                outcomes[stored.task_id] = Stale()
                continue
            policy = self._node.policies.of(stored.task.namespace)
            activity = self._reschedule.release(stored.task, shard, policy)
            if activity.state is ActivityState.RELEASED:
                leaving.append((stored, activity))
            else:
                outcomes[stored.task_id] = Done()
        tried = []
        for stored in batch:
            if (outcome := outcomes.get(stored.task_id)) is not None:
                tried.append((stored, update := self._record(stored, outcome, shard.now_ms())))
                shard.update_task(update)
        await self._node.durable(shard)
        for stored, update in tried:
            self.on_tried(stored, update, "matching")
        for stored, activity in leaving:
            self._on_their_way[shard.id].add(stored.task_id)
            delivery = asyncio.create_task(self._deliver(stored, activity))
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, stored: StoredTask, activity: Activity) -> None:
        """Beside everything else: a sink that hangs holds up nobody."""
        try:
            async with self._slot(stored, activity):
                outcome = await self._hand_on(stored, activity)
            await self._custody.recall([key_of(stored.task)])
            shard = self._node.shard_by_id(stored.shard_id)
            if isinstance(outcome, Done):
                self._reschedule.handed_on(stored.task, shard)
            update = self._record(stored, outcome, shard.now_ms())
            shard.update_task(update)
            await self._node.durable(shard)
            self.on_tried(stored, update, "sink")
        except (Unavailable, StoreError) as error:
            logger.info("delivery not recorded; it is repeated", task=stored.task_id, why=str(error))
        finally:
            self._on_their_way[stored.shard_id].discard(stored.task_id)
            self.wake(stored.shard_id)

    def _slot(self, stored: StoredTask, activity: Activity) -> asyncio.Semaphore:
        count = deliveries_max(self._reschedule.sink(stored.task, activity))
        if count not in self._slots:
            self._slots[count] = asyncio.Semaphore(count)
        return self._slots[count]

    async def _hand_on(self, stored: StoredTask, activity: Activity) -> QueueOutcome:
        try:
            async with asyncio.timeout(self.hand_on_timeout_s):
                await self._reschedule.hand_on(stored.task, activity)
        except SinkAway as error:
            return Postponed(str(error)[:ERROR_CHARS_MAX])
        except Exception as error:  # noqa: BLE001  # the one catch-all: whatever went wrong is recorded with the task
            return Failed(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
        return Done()

    def _record(self, stored: StoredTask, outcome: QueueOutcome, now_ms: int) -> TaskUpdate:
        if isinstance(outcome, Postponed):
            return TaskUpdate(stored.task_id, TaskState.RETRYING, PARKED_MS, stored.attempts, outcome.reason)
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
