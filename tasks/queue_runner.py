"""Executes the stored queues: claim → validate → execute → record, each task on its own.

Only the owner of a shard executes its queue, batch by batch. Within a batch every task succeeds, is retried with backoff
or is dead-lettered by itself: one poison activity blocks no other, and neither does a damaged row or a sink that hangs. Only what concerns
the shard or the store as a whole, and passes, interrupts a batch; any other error is a failed attempt of the task
that caused it.

A sink that reports itself down costs no task an attempt. The runner parks the tasks for that sink, each with one write,
does not read them in the meantime, and attempts them again when the sink is back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random

import structlog

from liveness.background import BackgroundTasks
from liveness.dispatch.ownership import ActivityOwnership
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.errors import Unavailable
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.slices import end_slice
from liveness.store.api import PARKED_MS, StoredTask, TaskState, TaskUpdate
from liveness.store.errors import StoreError, ValueRefused
from liveness.tasks.activity_reschedule import ActivityReschedule, activity_key_of
from liveness.tasks.contract import Done, Failed, Postponed, QueueOutcome, Stale, Unreadable
from liveness.tasks.sinks import SinkDown, deliveries_max

logger = structlog.get_logger("liveness.tasks")

BATCH_SIZE = 1_000
TASKS_PER_SLICE = 250
READS_AT_ONCE = 4
"""While some tasks are read, others are decided, and those of a third batch are committed."""
NEW_TASKS_MIN = 2_000
"""From so many on, tasks of all shards are executed in the order of their ids: see `_run_new_tasks`."""
BATCHES_PER_TURN = 8
"""After so many batches, the runner looks whether leases wait to be ended."""
TASK_US = 35
"""The estimated processor time to decide a task."""
BACKOFF_MS_MIN = 500
BACKOFF_MS_MAX = 300_000
ERROR_CHARS_MAX = 500
DELIVERY_TIMEOUT_S = 30
YIELD_MS_MAX = 1_000
"""The queue pauses while expired leases are still being ended, because activities cannot move before they are known to
be lost. After this time it executes a batch of each shard all the same, so that it never stops."""
DELIVERING_PER_SHARD_MAX = 5_000
"""How many deliveries of one shard run at once; other tasks stay in the store until some have finished."""


def backoff_ms(attempts: int, random: Random) -> int:
    """Return a delay that doubles with each attempt, with jitter, so that tasks that failed together do not retry together."""
    ceiling = min(BACKOFF_MS_MIN * 2 ** min(attempts - 1, 30), BACKOFF_MS_MAX)
    return int(ceiling * random.uniform(0.5, 1.0))


class QueueRunner(NodeListener):
    def __init__(
        self,
        node: Node,
        ownership: ActivityOwnership,
        reschedule: ActivityReschedule,
        *,
        attempts_max: int,
        random: Random,
        has_pending_expiries: Callable[[], bool] = lambda: False,
        is_sink_down: Callable[[], bool] = lambda: False,
        notify_remote: Callable[[set[int]], None] = lambda shard_ids: None,
        on_attempt: Callable[[StoredTask, TaskUpdate, str], None] = lambda stored, update, via: None,
    ) -> None:
        """`has_pending_expiries`: whether some expired leases are not ended yet. `is_sink_down`: whether parked tasks must
        keep waiting; the component that sees the sink return calls `wake_all`. `notify_remote`: receives the shards of other
        nodes whose queues received tasks. `on_attempt`: receives each attempt whose outcome is durable, and its receiver:
        `matching` or `sink`."""
        self._node = node
        self._ownership = ownership
        self._reschedule = reschedule
        self._attempts_max = attempts_max
        self._random = random
        self._has_pending_expiries = has_pending_expiries
        self._is_sink_down = is_sink_down
        self._yield_until_ms: int | None = None
        """Set while the queue pauses for expired leases."""
        self.delivery_timeout_s: float = DELIVERY_TIMEOUT_S
        self._next_due_ms: dict[int, int] = {}
        """Per shard, on its observed clock; 0 when it has work now."""
        self._should_wake_all = False
        self._expected_new = NEW_TASKS_MIN
        """About how many new tasks there are, of all shards together."""
        self._run_lock = asyncio.Lock()
        self._delivery_slots: dict[int, asyncio.Semaphore] = {}
        """By limit: sinks with the same `deliveries_max` share one semaphore."""
        self._deliveries = BackgroundTasks("task deliveries")
        self._delivering: defaultdict[int, set[int]] = defaultdict(set)
        """By shard: the tasks whose activity is being delivered to a sink."""
        self._wake = asyncio.Event()
        self._notify_remote = notify_remote
        self._on_attempt = on_attempt

    def shard_opened(self, shard: Shard) -> None:
        # A commit whose outcome was unknown may have added tasks to any shard.
        self.wake_all()

    def wake_all(self) -> None:
        self._should_wake_all = True
        self._expected_new = NEW_TASKS_MIN  # nobody knows
        self._wake.set()

    def wake(self, shard_id: int) -> None:
        self._next_due_ms[shard_id] = 0
        self._wake.set()

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        remote_shard_ids: set[int] = set()
        for part in commits:
            self._expected_new += sum(len(new.shard_ids) for new in part.commit.new_tasks)
            for shard_id in {id for new in part.commit.new_tasks for id in new.shard_ids}:
                if self._node.serves(shard_id):
                    self.wake(shard_id)
                else:
                    remote_shard_ids.add(shard_id)
            if part.commit.task_updates:
                self.wake(part.shard.id)
        if remote_shard_ids:
            self._notify_remote(remote_shard_ids)

    async def wake_new_tasks(self) -> None:
        """Wake the queues that received tasks from other nodes, in case the notification was lost."""
        owned = [shard.id for shard in self._node.shards()]
        for shard_id in await self._node.store.shards_with_new_tasks(owned):
            self.wake(shard_id)

    def tick(self) -> None:
        if self._due_shards():
            self._wake.set()

    def _due_shards(self) -> list[Shard]:
        if self._should_yield():
            return []
        if self._should_wake_all:
            self._should_wake_all = False
            self._next_due_ms = {shard.id: 0 for shard in self._node.shards()}
        return [
            shard
            for shard in self._node.shards()
            if (due_ms := self._next_due_ms.get(shard.id)) is not None and due_ms <= shard.now_ms()
        ]

    def _should_yield(self) -> bool:
        if not self._has_pending_expiries():
            self._yield_until_ms = None
            return False
        now_ms = self._node.clock.monotonic_ms()
        if self._yield_until_ms is None:
            self._yield_until_ms = now_ms + YIELD_MS_MAX
        return now_ms < self._yield_until_ms

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._run_due()
        finally:
            await self._cancel_deliveries()

    async def run_until_idle(self) -> None:
        """Return when no task of a serving shard is due and no delivery is running."""
        try:
            await self._run_due()
            while not self._deliveries.is_idle:
                await self._deliveries.wait_any()
                await self._run_due()
        except BaseException:
            await self._cancel_deliveries()
            raise

    async def _cancel_deliveries(self) -> None:
        """Cancel running deliveries. Their tasks are still due in the store and are read again."""
        self._deliveries.cancel()
        await self._deliveries.wait()
        self._delivering.clear()  # a task that was cancelled before its first step could not clean up after itself

    async def _run_due(self) -> None:
        async with self._run_lock:  # `run_until_idle` may be called while `run` is running
            while shards := self._due_shards():
                self._yield_until_ms = None
                if self._expected_new >= NEW_TASKS_MIN and await self._run_new_tasks(shards):
                    continue
                self._expected_new = 0
                left = iter(shards)
                async with asyncio.TaskGroup() as runs:
                    for _ in range(min(READS_AT_ONCE, len(shards))):
                        runs.create_task(self._run_shards(left))

    async def _run_new_tasks(self, shards: Sequence[Shard]) -> bool:
        """Execute new tasks of all these shards in the order of their ids. Many tasks come from workers that died together, and
        are about activities that are stored side by side, whatever their shards: in this order a commit changes few pages of
        the database, and in the order of shards as many as it has tasks. Returns whether there may be more; the caller reads
        the queue of each shard by itself after the last, and so finds tasks that this order has missed."""
        counts: list[int] = []
        try:
            await self._run_first_new_tasks([shard.id for shard in shards], counts)
        except* (Unavailable, StoreError) as errors:
            logger.info("queues interrupted", why=str(errors.exceptions[0]))
            counts.clear()
        return sum(counts) > 0

    async def _run_first_new_tasks(self, shard_ids: Sequence[int], counts: list[int]) -> None:
        found = await self._node.store.new_task_range(shard_ids)
        is_dense = found.last_id - found.first_id < 4 * found.tasks
        if found.tasks < NEW_TASKS_MIN or not is_dense:
            return
        end_id = min(found.last_id + 1, found.first_id + BATCHES_PER_TURN * BATCH_SIZE)
        left = iter(range(found.first_id, end_id, BATCH_SIZE))
        async with asyncio.TaskGroup() as runs:
            for _ in range(READS_AT_ONCE):
                runs.create_task(self._run_batches(shard_ids, left, counts))

    async def _run_batches(self, shard_ids: Sequence[int], left: Iterator[int], counts: list[int]) -> None:
        """`left`: the first id of each batch that nobody has taken yet. Adds how many tasks were executed to `counts`."""
        for first_id in left:
            # Copied before the read, as in `_run_shard`.
            delivering = {id: set(self._delivering[id]) for id in shard_ids if self._delivering[id]}
            found = await self._node.store.new_tasks(shard_ids, first_id, first_id + BATCH_SIZE - 1)
            if delivering:
                found = [
                    stored
                    for stored in found
                    if stored.task_id not in (known := delivering.get(stored.shard_id, ()))
                    and len(known) < DELIVERING_PER_SHARD_MAX
                ]
            counts.append(await self._execute(found))

    async def _run_shards(self, left: Iterator[Shard]) -> None:
        for shard in left:
            try:
                await self._run_shard(shard)
            except (Unavailable, StoreError) as error:
                # The shard is being re-read or the store is unreachable. Opening the shard wakes this runner.
                self._next_due_ms[shard.id] = shard.now_ms() + BACKOFF_MS_MIN
                logger.info("queue interrupted", shard=shard.id, why=str(error))

    async def _run_shard(self, shard: Shard) -> None:
        self._next_due_ms.pop(shard.id, None)
        # Copied before the read: a delivery that finishes meanwhile is recorded, but the read may not see that.
        delivering = set(self._delivering[shard.id])
        if len(delivering) >= DELIVERING_PER_SHARD_MAX:
            return  # the next delivery that finishes wakes this shard
        now_ms = shard.now_ms()
        due = await self._node.store.due_tasks(
            shard.id, now_ms, BATCH_SIZE + len(delivering), include_parked=not self._is_sink_down()
        )
        batch = [stored for stored in due if stored.task_id not in delivering]
        if batch:
            if not await self._execute(batch):
                raise self._node.commit_failure(shard.id)
            if len(batch) >= BATCH_SIZE:
                self._expected_new += len(batch)
            self.wake(shard.id)
            return
        next_due_ms = await self._node.store.next_due_ms(shard.id, now_ms if due else -1)
        if next_due_ms is not None and shard.id not in self._next_due_ms:
            self._next_due_ms[shard.id] = next_due_ms

    async def _execute(self, batch: Sequence[StoredTask]) -> int:
        """Take the activities from their workers. That completes tasks for our own matching; the others are delivered. Returns
        how many of the tasks have an outcome that is durable, or are delivered; the others belong to shards that were lost."""
        node = self._node
        attempts_made: list[tuple[StoredTask, TaskUpdate, Shard]] = []
        to_deliver: list[tuple[StoredTask, Activity, Shard]] = []
        for start in range(0, len(batch), TASKS_PER_SLICE):
            if start:
                await end_slice()
            await node.committer.wait_for_room()
            served = node.shard_table()
            part = [
                stored
                for stored in batch[start : start + TASKS_PER_SLICE]
                if served[stored.shard_id] is not None
            ]
            outcomes = await self._load_activities([stored for stored in part if not stored.damage])
            # No wait from here to the end of the slice: activities that were loaded may leave memory with the next one, and a
            # task is done in the commit that moves its activity.
            for stored in part:
                if (shard := served[stored.shard_id]) is None:
                    continue  # it was lost while the activities were read
                outcome = outcomes.get(stored.task_id) or self._release_activity(stored, shard)
                if isinstance(outcome, Activity):
                    to_deliver.append((stored, outcome, shard))
                    continue
                update = self._task_update(stored, outcome, shard)
                attempts_made.append((stored, update, shard))
                shard.update_task(update)
            node.committer.note_decided(TASK_US * len(part))
        group = node.barrier()
        await group.wait()
        intact = {
            shard
            for shard in {shard for *_, shard in (*attempts_made, *to_deliver)}
            if not group.failed(shard) and node.is_intact(shard)
        }
        for stored, update, shard in attempts_made:
            if shard in intact:
                self._on_attempt(stored, update, "matching")
        for stored, activity, shard in to_deliver:
            if shard in intact:
                self._delivering[shard.id].add(stored.task_id)
                self._deliveries.start(self._deliver(stored, activity))
        return sum(shard in intact for *_, shard in (*attempts_made, *to_deliver))

    async def _load_activities(self, batch: Sequence[StoredTask]) -> dict[int, QueueOutcome]:
        """Bring the activities of the tasks into memory. Returns the failures of tasks with names that the database
        refuses, by task. The last wait is the one for the names that it takes."""
        keys = {stored.task_id: activity_key_of(stored.task) for stored in batch}
        failures: dict[int, QueueOutcome] = {}
        try:
            await self._ownership.load(list(keys.values()))
        except ValueRefused:
            for task_id, key in tuple(keys.items()):
                try:
                    await self._ownership.load([key])
                except ValueRefused as error:
                    failures[task_id] = _failed(error)
                    del keys[task_id]
            await self._ownership.load(list(keys.values()))
        return failures

    def _release_activity(self, stored: StoredTask, shard: Shard) -> QueueOutcome | Activity:
        """Take the activity from its worker. Returns the activity if a sink receives it."""
        if stored.damage:
            return Unreadable(stored.damage)
        try:
            policy = self._node.policies.of(stored.task.namespace)
            activity = self._reschedule.release_activity(stored.task, shard, policy)
        except (Unavailable, StoreError):
            raise
        except Exception as error:  # noqa: BLE001  # recorded with the task
            return _failed(error)
        if activity is None:
            return _STALE
        return activity if activity.state is ActivityState.RELEASED else _DONE

    async def _deliver(self, stored: StoredTask, activity: Activity) -> None:
        """Deliver one activity in a task of its own, so that a sink that hangs delays nothing else."""
        try:
            async with self._delivery_slot(stored, activity):
                outcome = await self._attempt_delivery(stored, activity)
            await self._ownership.load([activity_key_of(stored.task)])
            shard = self._node.shard_by_id(stored.shard_id)
            if isinstance(outcome, Done):
                try:
                    self._reschedule.mark_delivered(stored.task, shard)
                except Exception as error:  # noqa: BLE001  # recorded with the task
                    outcome = _failed(error)
            update = self._task_update(stored, outcome, shard)
            shard.update_task(update)
            await self._node.wait_durable(shard)
            self._on_attempt(stored, update, "sink")
        except (Unavailable, StoreError) as error:
            logger.info("delivery not recorded; it is repeated", task=stored.task_id, why=str(error))
        finally:
            self._delivering[stored.shard_id].discard(stored.task_id)
            self.wake(stored.shard_id)

    def _delivery_slot(self, stored: StoredTask, activity: Activity) -> asyncio.Semaphore:
        count = deliveries_max(self._reschedule.sink(stored.task, activity))
        if count not in self._delivery_slots:
            self._delivery_slots[count] = asyncio.Semaphore(count)
        return self._delivery_slots[count]

    async def _attempt_delivery(self, stored: StoredTask, activity: Activity) -> QueueOutcome:
        try:
            async with asyncio.timeout(self.delivery_timeout_s):
                await self._reschedule.deliver(stored.task, activity)
        except SinkDown as error:
            return Postponed(str(error)[:ERROR_CHARS_MAX])
        except Exception as error:  # noqa: BLE001  # recorded with the task
            return _failed(error)
        return Done()

    def _task_update(self, stored: StoredTask, outcome: QueueOutcome, shard: Shard) -> TaskUpdate:
        if isinstance(outcome, Postponed):
            return TaskUpdate(stored.task_id, TaskState.RETRYING, PARKED_MS, stored.attempts, outcome.reason)
        attempts = stored.attempts + 1
        if not isinstance(outcome, Failed):
            return TaskUpdate(stored.task_id, TaskState.DONE, stored.due_ms, attempts, "")
        # Reading a damaged row again would not help.
        is_dead_lettered = attempts >= self._attempts_max or isinstance(outcome, Unreadable)
        logger.warning(
            "task dead-lettered" if is_dead_lettered else "task failed",
            task=stored.task_id,
            attempts=attempts,
            why=outcome.error,
        )
        state = TaskState.DEAD_LETTERED if is_dead_lettered else TaskState.RETRYING
        due_ms = shard.now_ms() + backoff_ms(attempts, self._random)
        return TaskUpdate(stored.task_id, state, due_ms, attempts, outcome.error)


_DONE, _STALE = Done(), Stale()


def _failed(error: Exception) -> Failed:
    return Failed(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
