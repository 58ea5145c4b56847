"""Fires the schedules of this node's shards: one commit has the firing and the activity that it schedules.

A schedule and its activities live on one shard, and only the shard's owner decides about it, so that a tick fires once, whichever
node serves the shard and however often that changes. A firing whose commit is lost did not happen; the next owner sees the tick again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence

import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.dispatch.ownership import ActivityOwnership
from liveness.domain import activity_decider as activities
from liveness.domain import schedule as schedules
from liveness.domain.activity_decider import ActivitySpec
from liveness.domain.errors import Exhausted, LivenessError
from liveness.domain.events import FiredActivity, ScheduleEvent, ScheduleFired
from liveness.domain.keys import ActivityKey
from liveness.domain.schedule import Schedule, ScheduleKey
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.open_activities import is_open
from liveness.engine.shard import PreparedCommit, Shard
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.schedules")

SCHEDULES_PER_TICK_MAX = 500
"""Over all shards. The others are fired with the next ticks, a fraction of a second later."""


class ScheduleRunner(NodeListener):
    def __init__(
        self,
        node: Node,
        ownership: ActivityOwnership,
        on_decided: Callable[[str, ScheduleEvent], None] = lambda namespace, event: None,
        on_refused: Callable[[str, Exhausted], None] = lambda namespace, error: None,
    ) -> None:
        """`on_decided` is told of events that are durable; `on_refused` of activities that a quota did not allow."""
        self._node = node
        self._ownership = ownership
        self._on_decided = on_decided
        self._on_refused = on_refused
        self._waiting: set[ScheduleKey] = set()
        """Schedules for which something is read or asked first."""
        self._tasks = BackgroundTasks("schedules", on_failure=node.fail)
        self._refusals = RepeatedWarning(logger, "a schedule cannot fire", node.clock)

    async def close(self) -> None:
        await self._tasks.close()

    async def wait(self) -> None:
        """Return when nothing is read or asked any more."""
        await self._tasks.wait()

    def tick(self) -> None:
        wall_ms, left = self._node.clock.wall_ms(), SCHEDULES_PER_TICK_MAX
        for shard in self._node.shards():
            book = shard.objects.schedules
            due: list[ScheduleKey] = []
            while left and (key := book.pop_due(wall_ms)) is not None:
                left -= 1
                due.append(key)
            for key in due:
                if key not in self._waiting:
                    self._fire_due(shard, key, wall_ms)
                book.look_again(key)

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        for part in commits:
            if not part.commit.objects:
                continue
            for entry in part.commit.entries:
                if isinstance(entry.event, ScheduleEvent) and entry.namespace is not None:
                    self._on_decided(entry.namespace, entry.event)

    def _fire_due(self, shard: Shard, key: ScheduleKey, wall_ms: int) -> None:
        schedule = shard.objects.schedules[key]
        look = schedules.look(key, schedule, wall_ms)
        if look.dropped is not None:
            shard.change_schedule(key, (look.dropped,))
        # After an update, or if the wall clock was set back: finished activities are not in memory.
        again = [tick_ms for tick_ms in look.fire if tick_ms <= schedule.last_tick_ms]
        if again:
            keys = [_key_of_tick(key, schedule, tick_ms) for tick_ms in again]
            self._start(key, self._fire_loaded(shard, key, look.fire, keys))
        else:
            self._fire_all(shard, key, look.fire)

    def _start(self, key: ScheduleKey, work: Coroutine[None, None, None]) -> None:
        async def run() -> None:
            try:
                await work
            except (LivenessError, StoreError) as error:
                logger.info("a schedule waits", schedule=key.schedule_id, why=str(error))
            finally:
                self._waiting.discard(key)

        self._waiting.add(key)
        self._tasks.start(run())

    async def _fire_loaded(
        self, shard: Shard, key: ScheduleKey, ticks: Sequence[int], keys: Sequence[ActivityKey]
    ) -> None:
        schedule = shard.objects.schedules.get(key)
        await self._ownership.load(keys)
        if shard in self._node.shards() and shard.objects.schedules.get(key) is schedule:
            self._fire_all(shard, key, ticks)

    def _fire_all(self, shard: Shard, key: ScheduleKey, ticks: Sequence[int]) -> None:
        """Fire ticks up to the first one for which there is no room."""
        for tick_ms in ticks:
            schedule = shard.objects.schedules[key]
            event = schedules.fire(
                key,
                schedule,
                tick_ms,
                lambda name, schedule=schedule: is_open(  # type: ignore[misc]
                    shard.activities.get(schedules.activity_key(key, schedule, name))
                ),
            )
            if isinstance(event, ScheduleFired) and not self._schedule(shard, key, schedule, event, ""):
                return
            shard.change_schedule(key, (event,))

    def _schedule(
        self, shard: Shard, key: ScheduleKey, schedule: Schedule, event: ScheduleFired, by: str
    ) -> bool:
        """Schedule the activity of a firing, unless it is known. Returns whether it is known now."""
        activity_key = schedules.activity_key(key, schedule, event.activity_id)
        if activity_key in shard.activities:
            return True
        fired = schedule.spec.activity
        try:
            if not self._ownership.has_room(shard, key.namespace, len(fired.input)):
                self._start(key, self._ownership.make_room(shard, key.namespace, len(fired.input)))
                return False
        except Exhausted as error:
            self._refusals.warn(schedule=key.schedule_id, namespace=key.namespace, why=str(error))
            self._on_refused(key.namespace, error)
            return False
        self._refusals.resolve()
        shard.change_activity(
            activity_key,
            activities.schedule(
                activity_key.id, None, activity_spec(fired), shard.now_ms(), activities.AT_ONCE, by
            ),
        )
        return True

    async def trigger(self, key: ScheduleKey, trigger_id: str, by: str) -> tuple[ActivityKey, bool]:
        """Fire now. Returns the activity, and whether it is new; both are decided and not durable yet."""
        while True:
            shard = self._node.shard(key.namespace, schedules.workflow_of(key.schedule_id))
            schedule = shard.objects.schedules[key]
            event = schedules.trigger(key, schedule, trigger_id, by)
            activity_key = schedules.activity_key(key, schedule, event.activity_id)
            await self._ownership.load([activity_key])
            if (
                self._node.shard(key.namespace, schedules.workflow_of(key.schedule_id)) is not shard
                or shard.objects.schedules.get(key) is not schedule
            ):
                continue  # it changed while the store was read
            if activity_key in shard.activities:
                return activity_key, False
            fired = schedule.spec.activity
            if not self._ownership.has_room(shard, key.namespace, len(fired.input)):
                await self._ownership.make_room(shard, key.namespace, len(fired.input))
                continue
            shard.change_activity(
                activity_key,
                activities.schedule(
                    activity_key.id, None, activity_spec(fired), shard.now_ms(), activities.AT_ONCE, by
                ),
            )
            shard.change_schedule(key, (event,))
            return activity_key, True


def _key_of_tick(key: ScheduleKey, schedule: Schedule, tick_ms: int) -> ActivityKey:
    return schedules.activity_key(key, schedule, schedules.format_moment(tick_ms))


def activity_spec(fired: FiredActivity) -> ActivitySpec:
    return ActivitySpec(
        fired.type,
        fired.task_queue,
        fired.input,
        fired.retry,
        fired.input_encoding,
        fired.limits,
        fired.priority,
    )
