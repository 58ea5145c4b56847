"""The newest events of all shards, found from the ends of their logs."""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest

from sqlalchemy import Connection, select

from liveness.store import codec
from liveness.store.codec import LogEntry, LogRow
from liveness.store.schema import RENEWALS_KIND, log, shards
from liveness.store.take_over import LOG_COLUMNS

SEARCHED_PER_SHARD = 500
"""How many of a shard's newest events are searched for those of one namespace: a full search could read the whole log."""


def recent_events(connection: Connection, namespace: str | None, limit: int) -> list[tuple[int, LogEntry]]:
    """Shard and event, newest last; of one namespace, or of all."""
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
    sequences: defaultdict[int, list[int]] = defaultdict(list)
    for _, shard_id, seq in nlargest(limit, found):
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
