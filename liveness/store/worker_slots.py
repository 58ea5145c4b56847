"""A namespace's quota of workers, open activities or their bytes, divided among shards: each node decides alone, and together
they never exceed the quota.

A shard admits as many as it was granted slots. Under a lock per namespace, it is granted more while the sum over all
shards stays within the quota. It returns slots that it does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from sqlalchemy import Connection, and_, delete, func, select

from liveness.store.bulk import insert_rows
from liveness.store.commit import check_epochs
from liveness.store.schema import slots

ROOM_DIVISOR = 500


def grant_slots(
    connection: Connection,
    shard_id: int,
    epoch: int,
    namespace: str,
    want: int,
    limit: int,
    extra_max: int,
) -> int:
    _lock_namespace(connection, namespace)
    check_epochs(connection, {shard_id: epoch})
    total_granted = select(func.coalesce(func.sum(slots.c.granted), 0)).where(slots.c.namespace == namespace)
    room = max(0, limit - int(connection.execute(total_granted).scalar_one()))
    shard_granted = select(slots.c.granted).where(
        slots.c.namespace == namespace, slots.c.shard_id == shard_id
    )
    # While there is plenty of room, grant more than requested, so that a starting fleet does not need a grant per worker.
    extra = min(room // ROOM_DIVISOR, extra_max)
    granted = (connection.execute(shard_granted).scalar() or 0) + min(max(want, extra), room)
    if granted:
        insert_rows(connection, slots, [(namespace, shard_id, granted)], replace_on=("namespace", "shard_id"))
    return granted


def return_slots(
    connection: Connection, owned: Mapping[int, int], namespace: str, kept: Mapping[int, int]
) -> None:
    _lock_namespace(connection, namespace)
    check_epochs(connection, owned)
    rows = [(namespace, shard_id, granted) for shard_id, granted in kept.items() if granted]
    insert_rows(connection, slots, rows, replace_on=("namespace", "shard_id"))
    emptied = [shard_id for shard_id, granted in kept.items() if not granted]
    connection.execute(
        delete(slots).where(and_(slots.c.namespace == namespace, slots.c.shard_id.in_(emptied)))
    )


def _lock_namespace(connection: Connection, namespace: str) -> None:
    """Serialise transactions on this namespace until the end of this one. SQLite serialises writers anyway."""
    if connection.dialect.name == "postgresql":
        lock = int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest(), signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")
