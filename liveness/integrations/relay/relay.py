"""The relay to NATS JetStream: a sink for reschedules, the event relay, and the operators' status and replay of both.

The task of a reschedule is its outbox row. The activity stays RELEASED until the stream has acknowledged the message; the
commit that changes the activity also marks the task as DONE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from liveness.domain.activity import Activity, ActivityState, ReleasedAttempt
from liveness.domain.errors import BrokerUnavailable, EventsNotRelayed
from liveness.domain.keys import ActivityKey, shard_of
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.relay_status import RelayStatus, ReplayResult, ReplaySelection, ShardRelayStatus
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.integrations.relay.broker import Broker, BrokerDown, MessageRefused
from liveness.integrations.relay.event_relay import EventEncoder, EventRelay
from liveness.integrations.relay.subjects import reschedules_subject
from liveness.integrations.reschedule_message import delivery_id, payload
from liveness.store.api import StoredTask
from liveness.tasks.activity_reschedule import activity_key_of
from liveness.tasks.sinks import queue_matcher

logger = structlog.get_logger("liveness.relay")

REPLAY_BATCH = 500


class RelaySink:
    deliveries_max = 512

    def __init__(self, broker: Broker, shard_count: int) -> None:
        self._broker = broker
        self._shard_count = shard_count

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        await self.publish(key, activity, task)

    async def publish(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> bool:
        """Publish a reschedule. Returns whether the stream had it already."""
        shard_id = shard_of(key.namespace, key.workflow_id, self._shard_count)
        subject = reschedules_subject(key.namespace, activity.task_queue, shard_id)
        return await self._broker.publish(subject, delivery_id(task), payload(key, activity, task))


class Relay:
    def __init__(
        self, node: Node, broker: Broker, queues: Iterable[str], encode_event: EventEncoder | None
    ) -> None:
        """`encode_event`: how events are written; without it, only reschedules are relayed."""
        self.broker = broker
        self._node = node
        self._sink = RelaySink(broker, node.shard_count)
        self._queue_matches = queue_matcher(queues)
        self.events = None if encode_event is None else EventRelay(node, broker, encode_event)
        """Publishes the log, as a listener of the node; None if events are not relayed."""

    @property
    def relay_name(self) -> str | None:
        """The name of the cursors in the store; None if no events are relayed."""
        return self.broker.config.stream if self.events is not None else None

    def select_sink(self, namespace: str, task_queue: str) -> RelaySink | None:
        return self._sink if self._queue_matches(namespace, task_queue) else None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.broker.run())
                if self.events is not None:
                    group.create_task(self.events.run())
        except Exception:
            # A bug. Messages wait as if the broker were unavailable, and the log must say why.
            logger.exception("relay stopped")
            raise

    # -- for operators

    async def status(self) -> RelayStatus:
        shards = self._node.shards()
        broker, name = self.broker, self.broker.config.stream
        backlogs = await self._node.store.relay_backlogs(name, [shard.id for shard in shards])
        return RelayStatus(
            servers=broker.config.servers_redacted,
            stream=name,
            relays_events=self.events is not None,
            connected=not broker.is_down,
            last_error=broker.last_error,
            last_error_wall_ms=broker.last_error_wall_ms,
            shards=tuple(
                ShardRelayStatus(
                    shard.id,
                    backlogs[shard.id].parked_tasks,
                    backlogs[shard.id].cursor if self.events is not None else 0,
                    shard.durable_feed_seq if self.events is not None else 0,
                    backlogs[shard.id].events if self.events is not None else 0,
                )
                for shard in shards
            ),
        )

    async def replay(self, selection: ReplaySelection) -> ReplayResult:
        """Publish again, with the same message ids, the messages that were acknowledged since the given time.

        A replay changes nothing in the store and may be repeated. Messages without an acknowledgement are published anyway.
        """
        if selection.events and self.events is None:
            raise EventsNotRelayed
        replayed = ReplayResult()
        try:
            await self._replay_reschedules(selection, replayed)
            if selection.events:
                for shard in self._node.shards():
                    await self._replay_events(shard, selection, replayed)
        except BrokerDown as error:
            raise BrokerUnavailable(
                published=replayed.reschedules + replayed.events, why=str(error)
            ) from error
        return replayed

    async def _replay_reschedules(self, selection: ReplaySelection, replayed: ReplayResult) -> None:
        after_id = 0
        while True:
            owned = [shard.id for shard in self._node.shards()]
            tasks = await self._node.store.finished_tasks(
                owned, selection.since_wall_ms, selection.namespace or None, after_id, REPLAY_BATCH
            )
            activities = await self._node.store.find_activities(
                {activity_key_of(stored.task) for stored in tasks}
            )
            outcomes = await asyncio.gather(
                *(
                    self._republish(activity_key_of(stored.task), activity, stored)
                    for stored in tasks
                    if (activity := activities.get(activity_key_of(stored.task))) is not None
                    and self._is_replayable(stored.task, activity, selection)
                )
            )
            replayed.reschedules += sum(outcome is not None for outcome in outcomes)
            replayed.duplicates += sum(outcome is True for outcome in outcomes)
            replayed.refused += sum(outcome is None for outcome in outcomes)
            if len(tasks) < REPLAY_BATCH:
                return
            after_id = tasks[-1].task_id

    def _is_replayable(
        self, task: ActivityRescheduleTask, activity: Activity, selection: ReplaySelection
    ) -> bool:
        """Whether this task handed the activity on, and the activity has not changed since."""
        return (
            activity.state is ActivityState.HANDED_ON
            and activity.releases[-1:] == (ReleasedAttempt(task.worker, task.epoch, task.activity.attempt),)
            and selection.task_queue in ("", activity.task_queue)
            and self._queue_matches(task.namespace, activity.task_queue)
        )

    async def _republish(self, key: ActivityKey, activity: Activity, stored: StoredTask) -> bool | None:
        try:
            return await self._sink.publish(key, activity, stored.task)
        except MessageRefused:
            return None

    async def _replay_events(self, shard: Shard, selection: ReplaySelection, replayed: ReplayResult) -> None:
        """Publish the events up to the cursor again. The event relay publishes those after it."""
        assert self.events is not None
        first_seq = await self._node.store.first_seq_since(shard.id, selection.since_wall_ms)
        through_seq = self.events.cursor(shard)
        if first_seq is None or through_seq is None:
            return
        after_seq = first_seq - 1
        while after_seq < through_seq:
            entries = await self._node.store.read_log(
                shard.id, after_seq, through_seq, REPLAY_BATCH, namespace=selection.namespace or None
            )
            outcomes = await asyncio.gather(*(self.events.publish(shard.id, entry) for entry in entries))
            for outcome in outcomes:
                if outcome is None:
                    raise BrokerDown(self.broker.last_error)
                replayed.events += not outcome.refused
                replayed.duplicates += outcome.duplicate
                replayed.refused += outcome.refused
            if len(entries) < REPLAY_BATCH:
                return
            after_seq = entries[-1].seq
