"""Rows of the stored queues. A damaged row is read as a task that says so: it must not stop its queue, and stays visible."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, LargeBinary, Row, Select, cast

from liveness.domain.reactions import ActivityRescheduleTask
from liveness.store import codec
from liveness.store.api import UNREADABLE, StoredTask, TaskState
from liveness.store.errors import CorruptRow
from liveness.store.schema import tasks

RAW_CHARS_MAX = 200


def read_tasks(connection: Connection, query: Select[Any]) -> list[StoredTask]:
    """Read the tasks of a query for whole rows of `tasks`."""
    if connection.dialect.name == "sqlite":
        # As bytes: the driver refuses all rows if the text of one is no valid UTF-8. PostgreSQL stores no such text.
        query = query.with_only_columns(
            *(cast(column, LargeBinary).label(column.name) if column is tasks.c.activity else column for column in tasks.columns)
        )  # fmt: skip
    return [_decode(row) for row in connection.execute(query)]


def _decode(row: Row[Any]) -> StoredTask:
    activity, damage = UNREADABLE, ""
    columns = (
        row.shard_id, row.kind, row.namespace, row.worker_key, row.lease_epoch, row.died, row.created_wall_ms,
    )  # fmt: skip
    try:
        payload = row.activity if isinstance(row.activity, str) else row.activity.decode()
        codec.verify_checksum(payload, "tasks", *columns)
        activity = codec.decode_bound_activity(payload)
    except (CorruptRow, UnicodeDecodeError, msgspec.MsgspecError) as error:
        reason = "it does not match its checksum" if isinstance(error, CorruptRow) else str(error)
        damage = f"The row of this task is damaged ({reason}): {ascii(row.activity)[:RAW_CHARS_MAX]}"
    return StoredTask(
        task_id=row.task_id,
        shard_id=row.shard_id,
        kind=row.kind,
        state=TaskState(row.state),
        due_ms=row.due_ms,
        attempts=row.attempts,
        last_error=row.last_error,
        task=ActivityRescheduleTask(row.namespace, activity, row.worker_key, row.lease_epoch, bool(row.died)),
        created_wall_ms=row.created_wall_ms,
        finished_wall_ms=row.finished_wall_ms,
        damage=damage,
    )
