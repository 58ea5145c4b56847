"""The table `silences`: how long workers that lived were not heard, counted by length. Written with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from liveness.domain.silences import CountedSilence, Silence, SilenceKind
from liveness.store.api import ShardCommit
from liveness.store.schema import silences

SILENCES_READ_MAX = 100_000


def silence_rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[object, ...]]:
    for commit in commits:
        for (namespace, silence), count in commit.silences.items():
            kind, wall_ms, terms_ms, silence_ms = silence
            yield namespace, wall_ms, commit.shard_id, int(kind), terms_ms, silence_ms, count


def read_silences(
    connection: Connection, namespace: str, from_wall_ms: int, to_wall_ms: int
) -> list[CountedSilence]:
    query = (
        select(
            silences.c.kind, silences.c.wall_ms, silences.c.terms_ms, silences.c.silence_ms, silences.c.count
        )
        .where(silences.c.namespace == namespace, silences.c.wall_ms.between(from_wall_ms, to_wall_ms))
        .order_by(silences.c.wall_ms.desc())
        .limit(SILENCES_READ_MAX)
    )
    return [
        CountedSilence(Silence(SilenceKind(kind), *rest), count)
        for kind, *rest, count in connection.execute(query)
    ]
