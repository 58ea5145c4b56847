"""Which events retention has deleted from the log.

The log's sequence has gaps by nature: plain renewals are numbered too, are never shown to a reader of events, and are compacted
within minutes. So a reader cannot tell from the numbers whether an event is missing. Each transaction that deletes events
records here how far it went, per shard and namespace, because each namespace has its own retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, or_, select

from liveness.store.bulk import insert_rows
from liveness.store.schema import deletions

NO_NAMESPACE = ""
"""Events that belong to no namespace; only a reader of all namespaces sees them."""
ANY_NAMESPACE = "*"
"""Events that a version without this table deleted: they may have belonged to any namespace."""


class DeletedEvents(NamedTuple):
    """What was deleted of a shard's events, as far as a reader of one namespace, or of all, could have read them."""

    through_seq: int = 0
    """The sequence of the newest one; 0 if none was deleted. Older events may be left."""
    events: int = 0
    newest_wall_ms: int = 0
    """The time of the newest one; 0 if it is not known."""

    def missing_after(self, seq: int) -> int:
        """How many events a reader at `seq` misses at most. Renewals are numbered too, and some of the events may have been
        deleted before the reader's position, so each of the two numbers may be too high by itself."""
        return max(0, min(self.through_seq - seq, self.events or self.through_seq))


class DeletedRow(NamedTuple):
    shard_id: int
    namespace: str | None
    seq: int
    wall_ms: int


def record_deletions(connection: Connection, rows: Iterable[DeletedRow]) -> None:
    """Record events that this transaction deletes. The caller has locked the epochs of the shards."""
    added: dict[tuple[int, str], DeletedEvents] = {}
    for shard_id, namespace, seq, wall_ms in rows:
        place = shard_id, namespace or NO_NAMESPACE
        added[place] = _sum(added.get(place, DeletedEvents()), DeletedEvents(seq, 1, wall_ms))
    if not added:
        return
    stored = select(deletions).where(
        or_(*(and_(deletions.c.shard_id == id, deletions.c.namespace == name) for id, name in added))
    )
    for shard_id, namespace, *before in connection.execute(stored):
        place = shard_id, namespace
        added[place] = _sum(added[place], DeletedEvents(*before))
    insert_rows(
        connection,
        deletions,
        [(*place, *total) for place, total in added.items()],
        replace_on=("shard_id", "namespace"),
    )


def _sum(one: DeletedEvents, other: DeletedEvents) -> DeletedEvents:
    return DeletedEvents(
        max(one.through_seq, other.through_seq),
        one.events + other.events,
        max(one.newest_wall_ms, other.newest_wall_ms),
    )


def read_deletions(
    connection: Connection, shard_ids: Collection[int], namespace: str | None
) -> dict[int, DeletedEvents]:
    """What was deleted of each shard, for a reader of this namespace, or of all."""
    query = (
        select(
            deletions.c.shard_id,
            func.max(deletions.c.through_seq),
            func.sum(deletions.c.events),
            func.max(deletions.c.newest_wall_ms),
        )
        .where(deletions.c.shard_id.in_(shard_ids))
        .group_by(deletions.c.shard_id)
    )
    if namespace is not None:
        query = query.where(deletions.c.namespace.in_((namespace, ANY_NAMESPACE)))
    return {shard_id: DeletedEvents(*map(int, deleted)) for shard_id, *deleted in connection.execute(query)}
