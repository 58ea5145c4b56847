"""The timeline of a database. Restoring a backup starts a new one, because the database goes back in time and its clients do not.

Between the backup and its restoration, leases were granted and attempts were handed out that the restored database does not
know. It would give out the same numbers again, and two holders with equal fencing tokens could both write. So a new
timeline has

- a **token floor**, the lowest lease epoch and attempt that is given out: above every number that was given out after the
  backup, so that all tokens from before the restoration are older than all tokens after it;
- an **id**, which is part of every watcher's resume token: a position in the old log is invalid in the new one.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select

from liveness.store.schema import meta, nodes

TOKENS_SINCE_BACKUP_MAX = 1_000_000
"""Upper bound on the attempts of one activity, and the leases of one worker, between backup and restoration."""
ATTEMPT_MAX = 2**31 - 1
"""The maximum in the API: an int32."""
TOKEN_FLOOR_MAX = 2**30
_CLOCK_FLOOR_EPOCH_S = 1_577_836_800
"""The first second of 2020: counted from there, seconds stay below `TOKEN_FLOOR_MAX` until 2054."""


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
    # Nodes that were registered when the backup was made do not serve this database.
    connection.execute(delete(nodes))
    values = {"history": timeline.id, "token_floor": str(timeline.token_floor)}
    connection.execute(delete(meta).where(meta.c.name.in_(values)))
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])
