"""Publishes the events of the shards that this node owns, in order, starting after the last acknowledged one.

The log itself is the outbox. A cursor per shard says how far the acknowledgements reach; it moves only after them, in a
transaction that checks that this node still owns the shard. Events whose acknowledgement did not reach the cursor are
published again with the same message ids, and the stream drops them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog

from liveness.background import RepeatedWarning
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.integrations.relay.broker import Broker, BrokerDown, MessageRefused
from liveness.integrations.relay.subjects import event_subject
from liveness.store.codec import LogEntry
from liveness.store.deletions import DeletedEvents
from liveness.store.errors import ShardsLost, StoreError
from liveness.store.pages import PAGE_BYTES_MAX

logger = structlog.get_logger("liveness.relay")

EVENTS_PER_SHARD_MAX = 200
EVENTS_PER_PASS_MAX = 1_000
PASS_INTERVAL_MS = 50
"""Each pass ends with a commit; events that arrive between two passes are published together."""
STORE_RETRY_MS = 1_000

EventEncoder = Callable[[int, LogEntry], bytes]


def message_id(shard_id: int, entry: LogEntry) -> str:
    """The id of an event's message. The time distinguishes it from an event with the same number in a restored database."""
    return f"{shard_id}-{entry.seq}-{entry.wall_ms}"


class LogPosition(NamedTuple):
    epoch: int
    seq: int


class EventRelay(NodeListener):
    def __init__(self, node: Node, broker: Broker, encode_event: EventEncoder) -> None:
        self.name = broker.config.stream
        """The name of the cursors in the store."""
        self._node = node
        self._broker = broker
        self._encode_event = encode_event
        self._opened_at: dict[int, LogPosition] = {}
        """The end of each shard's log when the shard was opened."""
        self._cursors: dict[int, LogPosition] = {}
        self._first_shard_id = 0
        """The shard that is published first in the next pass."""
        self.deleted_unpublished = 0
        """At most so many events were deleted before they could be published."""
        self._reported_gaps: dict[int, DeletedEvents] = {}
        """The deletions of each shard as they were last reported."""
        self._store_warning = RepeatedWarning(logger, "events cannot be relayed now", node.clock)
        self._wake = asyncio.Event()
        broker.on_connected.append(self._wake.set)

    def shard_opened(self, shard: Shard) -> None:
        self._opened_at[shard.id] = LogPosition(shard.epoch, shard.durable_seq)
        self._wake.set()

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        if any(part.feed_seq for part in commits):
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._publish_pass() and not self._broker.is_down:
                    await self._node.clock.sleep(PASS_INTERVAL_MS)
                self._store_warning.resolve()
            except StoreError as error:
                self._store_warning.warn(why=str(error))
                await self._node.clock.sleep(STORE_RETRY_MS)
                self._wake.set()

    def cursor(self, shard: Shard) -> int | None:
        """The last acknowledged sequence; None while it is not loaded."""
        position = self._cursors.get(shard.id)
        return position.seq if position is not None and position.epoch == shard.epoch else None

    async def _publish_pass(self) -> bool:
        """Publish one batch of each shard. Returns whether there may be more events."""
        await self._load_cursors()
        if self._broker.is_down:
            return False  # `run` is woken when the broker is connected again
        batches: list[tuple[Shard, int, list[LogEntry]]] = []
        left, more = EVENTS_PER_PASS_MAX, False
        for cursor, shard in self._shards_with_backlog():
            if left <= 0:
                # The next pass starts here, so that busy shards do not delay the others.
                self._first_shard_id, more = shard.id, True
                break
            through_seq, limit = shard.durable_feed_seq, min(left, EVENTS_PER_SHARD_MAX)
            entries, deleted = await self._node.store.read_feed(
                shard.id, cursor, through_seq, limit, bytes_max=PAGE_BYTES_MAX
            )
            self._report_deleted(shard.id, cursor, deleted)
            full = len(entries) == limit or entries.is_cut
            more = more or full
            left -= len(entries)
            batches.append((shard, entries[-1].seq if full else through_seq, entries))
        reached = await asyncio.gather(*(self._publish(shard, end, part) for shard, end, part in batches))
        await self._advance({shard: seq for (shard, _, _), seq in zip(batches, reached, strict=True)})
        return more

    def _report_deleted(self, shard_id: int, cursor: int, deleted: DeletedEvents) -> None:
        """Report events that were deleted before they were published: the broker was away for longer than they are kept, or
        the server ran for a while without the relay."""
        if deleted.through_seq <= cursor or self._reported_gaps.get(shard_id) == deleted:
            return
        self._reported_gaps[shard_id] = deleted
        missing = deleted.missing_after(cursor)
        self.deleted_unpublished += missing
        logger.error(
            "events were deleted before they were relayed", shard=shard_id, events_max=missing, after=cursor
        )

    def _shards_with_backlog(self) -> list[tuple[int, Shard]]:
        shards = sorted(self._node.shards(), key=lambda shard: (shard.id < self._first_shard_id, shard.id))
        return [
            (cursor, shard)
            for shard in shards
            if (cursor := self.cursor(shard)) is not None and cursor < shard.durable_feed_seq
        ]

    async def _publish(self, shard: Shard, end_seq: int, entries: Sequence[LogEntry]) -> int:
        """Returns the sequence up to which everything was acknowledged."""
        outcomes = await asyncio.gather(*(self.publish(shard.id, entry) for entry in entries))
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome is None:
                return entry.seq - 1
        return end_seq

    async def publish(self, shard_id: int, entry: LogEntry) -> PublishResult | None:
        """Publish one event. None: not acknowledged. An event that the broker refuses is logged and skipped, so that later
        events need not wait for ever."""
        subject = event_subject(entry.namespace, shard_id)
        try:
            duplicate = await self._broker.publish(
                subject, message_id(shard_id, entry), self._encode_event(shard_id, entry)
            )
        except BrokerDown:
            return None
        except MessageRefused as error:
            logger.error("event not relayed", shard=shard_id, sequence=entry.seq, why=str(error))
            return PublishResult(duplicate=False, refused=True)
        return PublishResult(duplicate=duplicate, refused=False)

    # -- cursors

    async def _load_cursors(self) -> None:
        """Load the cursors of newly opened shards. A shard without a stored cursor starts at the end that its log had."""
        without_cursor = {
            shard.id: shard
            for shard in self._node.shards()
            if self.cursor(shard) is None and shard.id in self._opened_at
        }
        if not without_cursor:
            return
        stored = await self._node.store.relay_cursors(self.name, without_cursor)
        initial: dict[Shard, int] = {}
        for shard_id, shard in without_cursor.items():
            opened_at = self._opened_at[shard_id]
            if opened_at.epoch != shard.epoch:
                continue  # the shard was opened again meanwhile
            if shard_id not in stored:
                initial[shard] = opened_at.seq
            else:
                self._cursors[shard_id] = LogPosition(shard.epoch, stored[shard_id])
        await self._store_cursors(initial)

    async def _advance(self, reached: Mapping[Shard, int]) -> None:
        advanced = {shard: seq for shard, seq in reached.items() if seq > (self.cursor(shard) or 0)}
        await self._store_cursors(advanced)

    async def _store_cursors(self, positions: Mapping[Shard, int]) -> None:
        while positions:
            owned = {shard.id: shard.epoch for shard in positions}
            try:
                await self._node.store.advance_relay_cursors(
                    self.name, owned, {shard.id: seq for shard, seq in positions.items()}
                )
            except ShardsLost as error:
                # Another node owns these shards and continues from their stored cursors.
                positions = {
                    shard: seq for shard, seq in positions.items() if shard.id not in error.shard_ids
                }
                continue
            for shard, seq in positions.items():
                self._cursors[shard.id] = LogPosition(shard.epoch, seq)
            return


class PublishResult(NamedTuple):
    duplicate: bool
    refused: bool
