"""The timeline of a database. Restoring a backup starts a new one, because the database goes back in time and its clients do not.

Between the backup and its restoration, leases were granted and attempts were handed out that the restored database does not
know. It would give out the same numbers again, and two holders with equal fencing tokens could both write. So a new
timeline has

- a **token floor**, the lowest lease epoch and attempt that is given out: above every number that was given out after the
  backup, so that all tokens from before the restoration are older than all tokens after it;
- an **id**, which is part of every watcher's resume token: a position in the old log is invalid in the new one.

Forgetting a worker raises a floor in the same way, for one shard: an **epoch floor** above all lease epochs of the forgotten
worker, so that the key's next worker never gets a lease epoch again that an earlier one had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select

from liveness.store.bulk import insert_rows
from liveness.store.database_identity import write_identity
from liveness.store.errors import NodeServes, RestoredMeanwhile, RestoreUnfinished
from liveness.store.migrate import lock_out_starts
from liveness.store.schema import meta, nodes

TOKENS_SINCE_BACKUP_MAX = 1_000_000
"""Upper bound on the attempts of one activity, and the leases of one worker, between backup and restoration."""
ATTEMPT_MAX = 2**31 - 1
"""The maximum in the API: an int32."""
TOKEN_FLOOR_MAX = 2**30
_CLOCK_FLOOR_EPOCH_S = 1_577_836_800
"""The first second of 2020: counted from there, seconds stay below `TOKEN_FLOOR_MAX` until 2054."""
_RESTORE = "unfinished_restore"


class Timeline(NamedTuple):
    id: str = ""
    """Empty for a database that was never restored."""
    token_floor: int = 1


def next_timeline(highest_token: int, wall_ms: int) -> Timeline:
    """The timeline that follows a database whose highest recorded token is `highest_token`.

    Two restorations of the same backup record the same highest token; the seconds of the wall clock tell them apart. The
    floor of the later one is higher by the seconds between them, which tokens given out once per second on average do not
    reach.
    """
    from_record = min(highest_token, TOKEN_FLOOR_MAX) + TOKENS_SINCE_BACKUP_MAX
    from_clock = min(wall_ms // 1_000 - _CLOCK_FLOOR_EPOCH_S, TOKEN_FLOOR_MAX)
    return Timeline(uuid4().hex, max(from_record, from_clock))


def read_timeline(connection: Connection) -> Timeline:
    stored = {row.name: row.value for row in connection.execute(select(meta))}
    return Timeline(stored.get("history", ""), int(stored.get("token_floor", "1")))


def write_timeline(connection: Connection, timeline: Timeline) -> None:
    _write_meta(connection, {"history": timeline.id, "token_floor": str(timeline.token_floor)})


def check_timeline(connection: Connection, timeline: Timeline) -> None:
    """Refuse a database that is being restored, or was since `timeline` was read."""
    if _read_restore(connection) is not None:
        raise RestoreUnfinished
    if read_timeline(connection) != timeline:
        raise RestoredMeanwhile


# -- the steps of a restore, which are several transactions: between the first and the last, no server opens the database


def begin_restore(connection: Connection, restore_id: str, silent: Mapping[str, int]) -> None:
    """Remove the registered nodes, and let no server open the database before `finish_restore`.

    `silent`: the beats of nodes whose leases are over. A node that is not among them, or has beaten since, is alive: then
    nothing is changed.
    """
    remove_silent_nodes(connection, silent)
    _write_meta(connection, {_RESTORE: restore_id})


def finish_restore(connection: Connection, restore_id: str) -> None:
    if _read_restore(connection) != restore_id:
        raise RestoreUnfinished  # another run of the command has begun since
    connection.execute(delete(meta).where(meta.c.name == _RESTORE))
    write_identity(connection)


def remove_silent_nodes(connection: Connection, silent: Mapping[str, int]) -> None:
    lock_out_starts(connection)
    if connection.dialect.name == "postgresql":
        # Nodes renew their leases, and register, only before or after this transaction.
        connection.exec_driver_sql("LOCK TABLE nodes IN SHARE ROW EXCLUSIVE MODE")
    for node_id, beat in connection.execute(select(nodes.c.node_id, nodes.c.beat)):
        if silent.get(node_id) != beat:
            raise NodeServes(node_id=node_id)
    connection.execute(delete(nodes))


def _read_restore(connection: Connection) -> str | None:
    stored: str | None = connection.execute(select(meta.c.value).where(meta.c.name == _RESTORE)).scalar()
    return stored


def _write_meta(connection: Connection, values: Mapping[str, str]) -> None:
    connection.execute(delete(meta).where(meta.c.name.in_(values)))
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])


_EPOCH_FLOOR = "epoch_floor:"


def read_epoch_floors(connection: Connection, shard_ids: Collection[int]) -> dict[int, int]:
    """The epoch floors of the shards that have one."""
    query = select(meta).where(meta.c.name.in_([f"{_EPOCH_FLOOR}{shard_id}" for shard_id in shard_ids]))
    return {int(row.name.removeprefix(_EPOCH_FLOOR)): int(row.value) for row in connection.execute(query)}


def write_epoch_floors(connection: Connection, floors: Mapping[int, int]) -> None:
    """Store the floors of shards that the caller's transaction has fenced."""
    rows = [(f"{_EPOCH_FLOOR}{shard_id}", str(floor)) for shard_id, floor in floors.items()]
    insert_rows(connection, meta, rows, replace_on=("name",))
