"""The table `progress`: the current row of each unit, written in the commit that changes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, select

from liveness.domain.progress import UnitKey, UnitProgress
from liveness.store import codec
from liveness.store.api import ProgressRow, ShardCommit
from liveness.store.bulk import insert_rows
from liveness.store.pages import Page, read_page
from liveness.store.prefixes import starts_with
from liveness.store.schema import progress


def write_progress(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    for commit in commits:
        for key in [key for key, unit in commit.progress.items() if unit is None]:
            connection.execute(
                delete(progress).where(
                    and_(progress.c.namespace == key.namespace, progress.c.unit == key.unit)
                )
            )
    insert_rows(
        connection,
        progress,
        _rows(commits),
        replace_on=("namespace", "unit"),
        keep_columns=("shard_id",),
    )


def _rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    for commit in commits:
        for key, unit in commit.progress.items():
            if unit is not None:
                failing = int(unit.failing)
                payload = codec.add_checksum(codec.encode_progress(unit), *key, failing)
                yield *key, commit.shard_id, failing, payload


def read_progress(
    connection: Connection, shard_ids: Collection[int]
) -> Mapping[int, dict[UnitKey, UnitProgress]]:
    found: defaultdict[int, dict[UnitKey, UnitProgress]] = defaultdict(dict)
    for row in connection.execute(select(progress).where(progress.c.shard_id.in_(shard_ids))):
        decoded = _decode(row)
        found[decoded.shard_id][decoded.key] = decoded.progress
    return found


def list_progress(
    connection: Connection, namespace: str, prefix: str, failing: bool, after: str | None, limit: int
) -> Page[ProgressRow]:
    query = select(progress).where(progress.c.namespace == namespace).order_by(progress.c.unit).limit(limit)
    if prefix:
        query = query.where(starts_with(progress.c.unit, prefix))
    if failing:
        query = query.where(progress.c.failing == 1)
    if after is not None:
        query = query.where(progress.c.unit > after)
    rows = read_page(connection, query, progress.c.payload)
    return Page.of(map(_decode, rows), is_cut=rows.is_cut)


def _decode(row: Row[Any]) -> ProgressRow:
    key = UnitKey(row.namespace, row.unit)
    codec.verify_checksum(row.payload, "progress", *key, row.failing)
    return ProgressRow(key, row.shard_id, codec.decode_progress(bool(row.failing), row.payload))
