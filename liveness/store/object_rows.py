"""The table `objects`: the current row of each schedule and concurrency limit, written in the commit that changes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, select

from liveness.domain.concurrency import ConcurrencyLimit
from liveness.store import codec
from liveness.store.api import ObjectKey, ObjectRow, ShardCommit, StoredObject
from liveness.store.bulk import insert_rows
from liveness.store.errors import WrittenByNewerVersion
from liveness.store.pages import Page, read_page
from liveness.store.prefixes import starts_with
from liveness.store.schema import objects

SCHEDULE_KIND = "schedule"
LIMIT_KIND = "concurrency limit"


def write_objects(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    for commit in commits:
        for key in [key for key, value in commit.objects.items() if value is None]:
            connection.execute(
                delete(objects).where(
                    and_(
                        objects.c.namespace == key.namespace,
                        objects.c.kind == key.kind,
                        objects.c.name == key.name,
                    )
                )
            )
    insert_rows(
        connection,
        objects,
        _rows(commits),
        replace_on=("namespace", "kind", "name"),
        keep_columns=("shard_id",),
    )


def _rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    for commit in commits:
        for key, value in commit.objects.items():
            if value is not None:
                yield *key, commit.shard_id, codec.add_checksum(_encode(value), *key)


def _encode(value: StoredObject) -> str:
    return codec.encode_limit(value) if isinstance(value, ConcurrencyLimit) else codec.encode_schedule(value)


def read_objects(
    connection: Connection, shard_ids: Collection[int]
) -> Mapping[int, dict[ObjectKey, StoredObject]]:
    found: defaultdict[int, dict[ObjectKey, StoredObject]] = defaultdict(dict)
    for row in connection.execute(select(objects).where(objects.c.shard_id.in_(shard_ids))):
        decoded = _decode(row)
        found[decoded.shard_id][decoded.key] = decoded.value
    return found


def list_objects(
    connection: Connection, namespace: str, kind: str, prefix: str, after: str | None, limit: int
) -> Page[ObjectRow]:
    query = (
        select(objects)
        .where(objects.c.namespace == namespace, objects.c.kind == kind)
        .order_by(objects.c.name)
        .limit(limit)
    )
    if prefix:
        query = query.where(starts_with(objects.c.name, prefix))
    if after is not None:
        query = query.where(objects.c.name > after)
    rows = read_page(connection, query, objects.c.payload)
    return Page.of(map(_decode, rows), is_cut=rows.is_cut)


def _decode(row: Row[Any]) -> ObjectRow:
    key = ObjectKey(row.namespace, row.kind, row.name)
    codec.verify_checksum(row.payload, "objects", *key)
    if key.kind == LIMIT_KIND:
        return ObjectRow(key, row.shard_id, codec.decode_limit(row.payload))
    if key.kind != SCHEDULE_KIND:
        raise WrittenByNewerVersion(what=f"an object of kind {key.kind}")
    return ObjectRow(key, row.shard_id, codec.decode_schedule(row.payload))
