"""The progress of a relay: how far each shard's log was published to a broker, and the backlog."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from liveness.store.api import OPEN_TASK_STATES, PARKED_MS, RelayBacklog, UnpublishedRetention
from liveness.store.bulk import insert_rows
from liveness.store.schema import RENEWALS_KIND, log, relays, tasks


def read_cursors(connection: Connection, relay: str, shard_ids: Collection[int]) -> dict[int, int]:
    query = select(relays.c.shard_id, relays.c.seq).where(
        relays.c.relay == relay, relays.c.shard_id.in_(shard_ids)
    )
    return {row.shard_id: row.seq for row in connection.execute(query)}


def advance_cursors(connection: Connection, relay: str, positions: Mapping[int, int]) -> None:
    """The caller has locked the epochs of the shards, so no other node moves these cursors meanwhile."""
    known = read_cursors(connection, relay, positions)
    rows = [(relay, shard_id, seq) for shard_id, seq in positions.items() if seq > known.get(shard_id, -1)]
    insert_rows(connection, relays, rows, replace_on=("relay", "shard_id"))


def read_backlogs(connection: Connection, relay: str, shard_ids: Collection[int]) -> dict[int, RelayBacklog]:
    count = func.count().label("count")
    parked = (
        select(tasks.c.shard_id, count)
        .where(
            tasks.c.shard_id.in_(shard_ids),
            tasks.c.state.in_(OPEN_TASK_STATES),
            tasks.c.due_ms == PARKED_MS,
        )
        .group_by(tasks.c.shard_id)
    )
    unpublished = (
        select(log.c.shard_id, count)
        .join(relays, and_(relays.c.shard_id == log.c.shard_id, relays.c.relay == relay))
        .where(log.c.shard_id.in_(shard_ids), log.c.seq > relays.c.seq, log.c.kind != RENEWALS_KIND)
        .group_by(log.c.shard_id)
    )
    waiting, events = (
        {row.shard_id: row[1] for row in connection.execute(query)} for query in (parked, unpublished)
    )
    positions = read_cursors(connection, relay, shard_ids)
    return {id: RelayBacklog(waiting.get(id, 0), positions.get(id, 0), events.get(id, 0)) for id in shard_ids}


def is_published(unpublished: UnpublishedRetention) -> ColumnElement[bool]:
    """Condition for log rows that the relay no longer needs. A relay without a cursor for a shard starts at the end of its log."""
    cursor = (
        select(relays.c.seq)
        .where(relays.c.relay == unpublished.relay, relays.c.shard_id == log.c.shard_id)
        .scalar_subquery()
    )
    return or_(log.c.seq <= func.coalesce(cursor, log.c.seq), log.c.wall_ms < unpublished.keep_since_wall_ms)
