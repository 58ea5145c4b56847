"""Rows of the stored queues. A damaged row is read as a task that says so: it must not stop its queue, and stays visible."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, cast

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
    return [_decode(*row) for row in connection.execute(query.with_only_columns(*columns)).all()]


_STATES = {int(state): state for state in TaskState}


def _decode(
    task_id: int,
    shard_id: int,
    stored_kind: str | bytes,
    state: int,
    due_ms: int,
    attempts: int,
    last_error: str | bytes,
    stored_namespace: str | bytes,
    stored_worker: str | bytes,
    epoch: int,
    stored_activity: str | bytes,
    died: int,
    created_wall_ms: int,
    finished_wall_ms: int | None,
) -> StoredTask:
    """The parameters are the columns in order. A mass expiry reads a hundred thousand rows."""
    activity, damage = UNREADABLE, ""
    try:
        kind, namespace, worker_key, payload = (
            _text(stored_kind), _text(stored_namespace), _text(stored_worker), _text(stored_activity),
        )  # fmt: skip
        codec.verify_checksum(
            payload, "tasks", shard_id, kind, namespace, worker_key, epoch, died, created_wall_ms
        )
        activity = codec.decode_bound_activity(payload)
    except (CorruptRow, UnicodeDecodeError, msgspec.MsgspecError) as error:
        kind, namespace, worker_key = shown(stored_kind), shown(stored_namespace), shown(stored_worker)
        reason = "it does not match its checksum" if isinstance(error, CorruptRow) else str(error)
        damage = f"The row of this task is damaged ({reason}): {ascii(stored_activity)[:RAW_CHARS_MAX]}"
    return StoredTask(
        task_id, shard_id, kind, _STATES[state], due_ms, attempts,
        # It decides nothing, so that the task is executed whatever it says.
        shown(last_error),
        ActivityRescheduleTask(namespace, activity, worker_key, epoch, bool(died)), created_wall_ms,
        finished_wall_ms, damage,
    )  # fmt: skip


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
