"""The relay to NATS JetStream, as a whole: reschedules as a sink, events from the log, and what operators ask of both.

A reschedule's task is its outbox row. The activity stays RELEASED until the stream has acknowledged the message, and
the task is DONE in the same commit that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from liveness.domain.activity import Activity, ActivityState, Release
from liveness.domain.errors import BrokerUnavailable, EventsNotRelayed
from liveness.domain.keys import ActivityKey, shard_of
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.relay import RelayStatus, Replayed, ReplaySelection, ShardRelay
from liveness.relays import reschedules_subject
from liveness.shard.node import Node
from liveness.shard.shard import Shard
from liveness.store.api import StoredTask
from tasks.activity_reschedule import key_of
from tasks.broker import Broker, BrokerAway, MessageRefused
from tasks.event_relay import EventJson, EventRelay
from tasks.reschedule_message import delivery_id, payload
from tasks.sinks import chosen_by

logger = structlog.get_logger("liveness.relay")

REPLAY_BATCH = 500


class RelaySink:
    deliveries_max = 512

    def __init__(self, broker: Broker, shard_count: int) -> None:
        self._broker = broker
        self._shard_count = shard_count

    async def offer(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        await self.publish(key, activity, task)

    async def publish(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> bool:
        """Whether the stream had it already."""
        shard_id = shard_of(key.namespace, key.workflow_id, self._shard_count)
        subject = reschedules_subject(key.namespace, activity.task_queue, shard_id)
        return await self._broker.publish(subject, delivery_id(task), payload(key, activity, task))


class Relay:
    def __init__(self, broker: Broker, queues: Iterable[str], shard_count: int, *, events: bool) -> None:
        self.broker = broker
        self._sink = RelaySink(broker, shard_count)
        self._chosen = chosen_by(queues)
        self._relays_events = events
        self._events: EventRelay | None = None
        self._node: Node

    @property
    def published_as(self) -> str | None:
        """The name of the cursors in the store; None if no events are relayed."""
        return self.broker.place.stream if self._relays_events else None

    def route(self, namespace: str, task_queue: str) -> RelaySink | None:
        return self._sink if self._chosen(namespace, task_queue) else None

    def attach(self, node: Node, event_json: EventJson) -> None:
        """Before the node takes its shards."""
        self._node = node
        if self._relays_events:
            self._events = EventRelay(node, self.broker, event_json)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.broker.run())
                if self._events is not None:
                    group.create_task(self._events.run())
        except Exception:
            # A bug. Messages wait, as for a broker that is away, and somebody has to hear of it.
            logger.exception("relay stopped")
            raise

    # -- for operators

    async def status(self) -> RelayStatus:
        shards = self._node.shards()
        broker, name = self.broker, self.broker.place.stream
        backlogs = await self._node.store.relay_backlogs(name, [shard.id for shard in shards])
        return RelayStatus(
            servers=broker.place.servers_for_people,
            stream=name,
            relays_events=self._relays_events,
            connected=not broker.is_away,
            last_error=broker.last_error,
            last_error_wall_ms=broker.last_error_wall_ms,
            shards=tuple(
                ShardRelay(
                    shard.id,
                    backlogs[shard.id].parked_tasks,
                    backlogs[shard.id].cursor if self._relays_events else 0,
                    shard.durable_notable_seq if self._relays_events else 0,
                    backlogs[shard.id].events if self._relays_events else 0,
                )
                for shard in shards
            ),
        )

    async def replay(self, selection: ReplaySelection) -> Replayed:
        """Publish again, under the same message ids, what was acknowledged since then. Nothing is marked by it: it may
        be repeated, and what is not acknowledged yet is on its way by itself."""
        if selection.events and self._events is None:
            raise EventsNotRelayed
        done = Replayed()
        try:
            await self._replay_reschedules(selection, done)
            if selection.events:
                for shard in self._node.shards():
                    await self._replay_events(shard, selection, done)
        except BrokerAway as error:
            raise BrokerUnavailable(published=done.reschedules + done.events, why=str(error)) from error
        return done

    async def _replay_reschedules(self, selection: ReplaySelection, done: Replayed) -> None:
        after_id = 0
        while True:
            owned = [shard.id for shard in self._node.shards()]
            tasks = await self._node.store.finished_tasks(
                owned, selection.since_wall_ms, selection.namespace or None, after_id, REPLAY_BATCH
            )
            activities = await self._node.store.find_activities({key_of(stored.task) for stored in tasks})
            outcomes = await asyncio.gather(
                *(
                    self._publish_again(key_of(stored.task), activity, stored)
                    for stored in tasks
                    if (activity := activities.get(key_of(stored.task))) is not None
                    and self._is_ours(stored.task, activity, selection)
                )
            )
            done.reschedules += sum(outcome is not None for outcome in outcomes)
            done.duplicates += sum(outcome is True for outcome in outcomes)
            done.refused += sum(outcome is None for outcome in outcomes)
            if len(tasks) < REPLAY_BATCH:
                return
            after_id = tasks[-1].task_id

    def _is_ours(self, task: ActivityRescheduleTask, activity: Activity, selection: ReplaySelection) -> bool:
        """Handed on by this very task, and nothing has happened to it here since."""
        return (
            activity.state is ActivityState.HANDED_ON
            and activity.releases[-1:] == (Release(task.worker, task.epoch, task.activity.attempt),)
            and selection.task_queue in ("", activity.task_queue)
            and self._chosen(task.namespace, activity.task_queue)
        )

    async def _publish_again(self, key: ActivityKey, activity: Activity, stored: StoredTask) -> bool | None:
        try:
            return await self._sink.publish(key, activity, stored.task)
        except MessageRefused:
            return None

    async def _replay_events(self, shard: Shard, selection: ReplaySelection, done: Replayed) -> None:
        """Up to the cursor and without moving it: what comes after is published in its turn."""
        assert self._events is not None
        first_seq = await self._node.store.first_event_since(shard.id, selection.since_wall_ms)
        through_seq = self._events.cursor(shard)
        if first_seq is None or through_seq is None:
            return
        after_seq = first_seq - 1
        while after_seq < through_seq:
            entries = await self._node.store.read_log(
                shard.id, after_seq, through_seq, REPLAY_BATCH, namespace=selection.namespace or None
            )
            outcomes = await asyncio.gather(*(self._events.publish(shard.id, entry) for entry in entries))
            for outcome in outcomes:
                if outcome is None:
                    raise BrokerAway(self.broker.last_error)
                done.events += not outcome.refused
                done.duplicates += outcome.duplicate
                done.refused += outcome.refused
            if len(entries) < REPLAY_BATCH:
                return
            after_seq = entries[-1].seq
