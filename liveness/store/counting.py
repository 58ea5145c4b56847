"""How many there are, for people."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, func, select, text

from liveness.store.api import QueueCount, TaskState
from liveness.store.schema import DEAD, OPEN, tasks


def count_tasks(connection: Connection, shard_ids: Collection[int]) -> list[QueueCount]:
    """Of each state by its own index, which holds the few that are not finished and not the many that are. The conditions
    are literal, because SQLite uses an index of some rows only for a condition that it can see."""
    groups = (tasks.c.shard_id, tasks.c.namespace, tasks.c.state)
    query = select(*groups, func.count(), func.min(tasks.c.created_wall_ms)).group_by(*groups)
    owned = tasks.c.shard_id.in_(shard_ids)
    return [
        QueueCount(shard_id, namespace, TaskState(state), count, oldest_wall_ms)
        for condition in (OPEN, DEAD)
        for shard_id, namespace, state, count, oldest_wall_ms in connection.execute(
            query.where(text(condition), owned)
        )
    ]
