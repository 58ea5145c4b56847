"""When leases began and ended: what is replayed with other settings."""

from __future__ import annotations

from sqlalchemy import Connection, select

from liveness.domain.events import (
    DisconnectGraceGranted,
    SessionReplaced,
    WorkerDeactivated,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.store import codec
from liveness.store.codec import LogEntry, LogRow
from liveness.store.pages import Page
from liveness.store.schema import deaths, log
from liveness.store.take_over import LOG_COLUMNS

DEAD_WORKERS_MAX = 2_000
LEASE_EVENTS_MAX = 20_000
WORKERS_PER_QUERY = 200
_LEASE_KINDS = tuple(
    kind.__name__
    for kind in (
        WorkerRegistered, SessionReplaced, WorkerResurrected, WorkerDeactivated, DisconnectGraceGranted,
    )
)  # fmt: skip


def read_lease_events(
    connection: Connection, namespace: str, from_wall_ms: int, to_wall_ms: int
) -> Page[LogEntry]:
    query = (
        select(deaths)
        .where(deaths.c.namespace == namespace, deaths.c.wall_ms.between(from_wall_ms, to_wall_ms))
        .order_by(deaths.c.wall_ms.desc(), deaths.c.shard_id, deaths.c.seq)
    )
    workers: dict[str, None] = {}
    is_cut = False
    for *key, payload in connection.execute(query):
        codec.verify_checksum(payload, "deaths", *key)
        workers.update(dict.fromkeys(death.worker for death in codec.decode_deaths(payload)))
        if len(workers) > DEAD_WORKERS_MAX:
            is_cut = True
            break
    found: list[LogEntry] = []
    names = list(workers)[:DEAD_WORKERS_MAX]
    for start in range(0, len(names), WORKERS_PER_QUERY):
        query = (
            select(*LOG_COLUMNS)
            .where(
                log.c.namespace == namespace,
                log.c.worker_key.in_(names[start : start + WORKERS_PER_QUERY]),
                log.c.kind.in_(_LEASE_KINDS),
            )
            .order_by(log.c.worker_key, log.c.seq)
            .limit(LEASE_EVENTS_MAX)
        )
        found += [codec.decode_entry(LogRow(*row)) for row in connection.execute(query)]
        if len(found) >= LEASE_EVENTS_MAX:
            is_cut = True
            break
    return Page.of(found, is_cut=is_cut)
