"""Which history a database tells. Restoring a backup begins another: time went back, but the world did not.

Between the backup and its restoring, leases were granted and attempts were handed out that the restored database knows
nothing of. It would grant and hand out the same numbers again, and two holders with equal fencing tokens could both
write. So a new history has

- a **floor**, below which no lease epoch and no attempt is given out any more: above everything that the forgotten
  time can have seen, so that whoever still holds a token of that time is older than everybody after it;
- an **id**, which is part of every watcher's resume token: a place in the old log is no place in this one.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select

from liveness.store.schema import meta, nodes

TOKENS_SINCE_BACKUP_MAX = 1_000_000
"""So many attempts of one activity, and so many leases of one worker, may the forgotten time have seen."""
ATTEMPT_MAX = 2**31 - 1
"""As the contract has it."""
TOKEN_FLOOR_MAX = 2**30
_CLOCK_FLOOR_EPOCH_S = 1_577_836_800
"""The first second of 2020: counted from there, seconds stay below `TOKEN_FLOOR_MAX` until 2054."""


class Timeline(NamedTuple):
    id: str = ""
    """Empty for a database that was never restored."""
    token_floor: int = 1


def next_timeline(highest_token: int, wall_ms: int) -> Timeline:
    """The history after one in which tokens up to `highest_token` are on record.

    The seconds of the wall clock keep two restorings of the same backup apart, whose records are the same: the floor of
    the later one is higher by the seconds between them, and what is handed out once in a second on average does not
    reach it.
    """
    from_record = min(highest_token, TOKEN_FLOOR_MAX) + TOKENS_SINCE_BACKUP_MAX
    from_clock = min(wall_ms // 1_000 - _CLOCK_FLOOR_EPOCH_S, TOKEN_FLOOR_MAX)
    return Timeline(uuid4().hex, max(from_record, from_clock))


def read_timeline(connection: Connection) -> Timeline:
    stored = {row.name: row.value for row in connection.execute(select(meta))}
    return Timeline(stored.get("history", ""), int(stored.get("token_floor", "1")))


def write_timeline(connection: Connection, timeline: Timeline) -> None:
    # Whoever served when the backup was made does not serve this.
    connection.execute(delete(nodes))
    values = {"history": timeline.id, "token_floor": str(timeline.token_floor)}
    connection.execute(delete(meta).where(meta.c.name.in_(values)))
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])
