"""Counts of unfinished tasks, for metrics and operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, text

from liveness.store.api import QueueCount, TaskState
from liveness.store.schema import DEAD_TASKS_SQL, OPEN_TASKS_SQL, tasks
from liveness.store.task_rows import as_stored, shown


def count_queries(
    shard_ids: Collection[int], namespace: ColumnElement[Any] = tasks.c.namespace
) -> list[Select[Any]]:
    """One query per partial index: the indexes hold the few unfinished tasks, not the many finished ones.

    The conditions are literal, because SQLite uses a partial index only if the condition contains no parameters.
    `namespace`: how that column is selected.
    """
    groups = (tasks.c.shard_id, tasks.c.namespace, tasks.c.state)
    counts = select(
        tasks.c.shard_id, namespace, tasks.c.state, func.count(), func.min(tasks.c.created_wall_ms)
    ).group_by(*groups)
    return [
        counts.where(tasks.c.shard_id.in_(shard_ids), text(condition))
        for condition in (OPEN_TASKS_SQL, DEAD_TASKS_SQL)
    ]


def count_tasks(connection: Connection, shard_ids: Collection[int]) -> list[QueueCount]:
    return [
        QueueCount(shard_id, shown(namespace), TaskState(state), count, oldest_wall_ms)
        for query in count_queries(shard_ids, as_stored(connection, tasks.c.namespace))
        for shard_id, namespace, state, count, oldest_wall_ms in connection.execute(query)
    ]
