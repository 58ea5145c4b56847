"""The newest events of all shards, found from the ends of their logs."""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest

from sqlalchemy import Connection, func, select

from liveness.store import codec
from liveness.store.codec import LogEntry, LogRow
from liveness.store.pages import newest_within
from liveness.store.schema import RENEWALS_KIND, log, shards
from liveness.store.take_over import LOG_COLUMNS

SEARCHED_PER_SHARD = 500
"""How many of a shard's newest events are searched for those of one namespace: a full search could read the whole log."""


def recent_events(connection: Connection, namespace: str | None, limit: int) -> list[tuple[int, LogEntry]]:
    """Shard and event, newest last; of one namespace, or of all. Fewer than `limit` if they are large."""
    found: list[tuple[int, int, int]] = []
    for shard_id in connection.execute(select(shards.c.shard_id)).scalars().all():
        newest = (
            select(log.c.wall_ms, log.c.seq, log.c.namespace)
            .where(log.c.shard_id == shard_id, log.c.kind != RENEWALS_KIND)
            .order_by(log.c.seq.desc())
            .limit(limit if namespace is None else SEARCHED_PER_SHARD)
        )
        found += [
            (wall_ms, shard_id, seq)
            for wall_ms, seq, name in connection.execute(newest)
            if namespace in (None, name)
        ]
    newest_found = nlargest(limit, found)
    sizes = _sizes(connection, newest_found)
    sequences: defaultdict[int, list[int]] = defaultdict(list)
    # An event that retention has just deleted has no size any more.
    for shard_id, seq in newest_within((sizes.get(place[1:], 0), place[1:]) for place in newest_found):
        sequences[shard_id].append(seq)
    entries: list[tuple[int, LogEntry]] = []
    for shard_id, wanted in sequences.items():
        rows = connection.execute(
            select(*LOG_COLUMNS).where(
                log.c.shard_id == shard_id, log.c.kind != RENEWALS_KIND, log.c.seq.in_(wanted)
            )
        )
        entries += [(shard_id, codec.decode_entry(LogRow(*row))) for row in rows]
    return sorted(entries, key=lambda item: (item[1].wall_ms, item[0], item[1].seq))


def _sizes(connection: Connection, places: list[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """Return the stored bytes of these events, by shard and sequence."""
    sequences: defaultdict[int, list[int]] = defaultdict(list)
    for _, shard_id, seq in places:
        sequences[shard_id].append(seq)
    sizes: dict[tuple[int, int], int] = {}
    for shard_id, wanted in sequences.items():
        rows = connection.execute(
            select(log.c.seq, func.length(log.c.payload)).where(
                log.c.shard_id == shard_id, log.c.kind != RENEWALS_KIND, log.c.seq.in_(wanted)
            )
        )
        sizes.update(((shard_id, seq), size) for seq, size in rows)
    return sizes
