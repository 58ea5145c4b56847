"""The projection of deaths: who died when in a namespace, written with the events that end the leases.

A certificate counts those who died with a worker from here and not from memory, so that the count survives restarts and
take-overs, is the same on every node, and no longer changes once a minute has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, select

from liveness.domain.death_certificate import Death
from liveness.domain.events import WorkerDeactivated
from liveness.store import codec
from liveness.store.api import ShardCommit
from liveness.store.schema import deaths

DEATHS_READ_MAX = 100_000
"""How many deaths a certificate looks at. They are read in a fixed order, so that this bound gives the same answer again."""


def death_rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    """One row for all deaths of a commit that have the same namespace and millisecond: ten thousand workers that die at
    once take a few rows."""
    for commit in commits:
        rows: dict[tuple[str, int], tuple[int, list[Death]]] = {}
        for entry in commit.entries:
            event = entry.event
            if isinstance(event, WorkerDeactivated) and event.certificate is not None:
                assert entry.namespace is not None
                assert entry.worker is not None
                death = Death(entry.worker, event.certificate.host_name, event.certificate.build_id)
                rows.setdefault((entry.namespace, entry.wall_ms), (entry.seq, []))[1].append(death)
        for (namespace, wall_ms), (seq, found) in rows.items():
            key = (namespace, wall_ms, commit.shard_id, seq)
            yield *key, codec.add_checksum(codec.encode_deaths(found), *key)


def read_deaths(connection: Connection, namespace: str, from_wall_ms: int, to_wall_ms: int) -> list[Death]:
    query = (
        select(deaths)
        .where(deaths.c.namespace == namespace, deaths.c.wall_ms.between(from_wall_ms, to_wall_ms))
        .order_by(deaths.c.wall_ms, deaths.c.shard_id, deaths.c.seq)
    )
    found: list[Death] = []
    for *key, payload in connection.execute(query):
        codec.verify_checksum(payload, "deaths", *key)
        found += codec.decode_deaths(payload)
        if len(found) >= DEATHS_READ_MAX:
            break
    return found
