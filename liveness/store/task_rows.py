"""Rows of the stored queues. A damaged row is read as a task that says so: it must not stop its queue, and stays visible."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, LargeBinary, Row, Select, cast

from liveness.domain.reactions import ActivityRescheduleTask
from liveness.store import codec
from liveness.store.api import UNREADABLE, StoredTask, TaskState
from liveness.store.errors import CorruptRow
from liveness.store.schema import tasks

RAW_CHARS_MAX = 200


_TEXTS = frozenset({"kind", "last_error", "namespace", "worker_key", "activity"})


def as_stored(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A text column to select. As bytes from SQLite: its driver refuses all rows if the text of one is no valid UTF-8.
    PostgreSQL stores no such text."""
    return cast(column, LargeBinary) if connection.dialect.name == "sqlite" else column


def shown(value: str | bytes) -> str:
    """The text of a column, with escapes in place of bytes that are no text."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def read_tasks(connection: Connection, query: Select[Any]) -> list[StoredTask]:
    """Read the tasks of a query for whole rows of `tasks`."""
    columns = (
        as_stored(connection, column).label(column.name) if column.name in _TEXTS else column
        for column in tasks.columns
    )
    return [_decode(row) for row in connection.execute(query.with_only_columns(*columns))]


def _decode(row: Row[Any]) -> StoredTask:
    activity, damage = UNREADABLE, ""
    try:
        kind, namespace, worker_key, payload = map(
            _text, (row.kind, row.namespace, row.worker_key, row.activity)
        )
        codec.verify_checksum(
            payload, "tasks", row.shard_id, kind, namespace, worker_key, row.lease_epoch, row.died, row.created_wall_ms
        )  # fmt: skip
        activity = codec.decode_bound_activity(payload)
    except (CorruptRow, UnicodeDecodeError, msgspec.MsgspecError) as error:
        kind, namespace, worker_key = map(shown, (row.kind, row.namespace, row.worker_key))
        reason = "it does not match its checksum" if isinstance(error, CorruptRow) else str(error)
        damage = f"The row of this task is damaged ({reason}): {ascii(row.activity)[:RAW_CHARS_MAX]}"
    return StoredTask(
        task_id=row.task_id,
        shard_id=row.shard_id,
        kind=kind,
        state=TaskState(row.state),
        due_ms=row.due_ms,
        attempts=row.attempts,
        # It decides nothing, so that the task is executed whatever it says.
        last_error=shown(row.last_error),
        task=ActivityRescheduleTask(namespace, activity, worker_key, row.lease_epoch, bool(row.died)),
        created_wall_ms=row.created_wall_ms,
        finished_wall_ms=row.finished_wall_ms,
        damage=damage,
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
