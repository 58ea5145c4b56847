"""Verify that a SQLite file, which no process has open, is a complete liveness database. Reads everything, changes nothing."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from liveness.domain.keys import ActivityId, shard_of
from liveness.store import codec
from liveness.store.codec import LogRow
from liveness.store.errors import CorruptRow, NotABackup
from liveness.store.migrate import Revisions
from liveness.store.sqlite import WAL, connect_read_only, sibling_path

Progress = Callable[[str, int, int], None]
"""Called with the current step, the amount done, and the total."""

PROGRESS_EVERY_ROWS = 10_000
PROBLEMS_SHOWN = 3


class DatabaseSummary(NamedTuple):
    """Counts of a database's content, taken during the check."""

    bytes: int
    revision: str
    shards: int
    log_entries: int
    workers: int
    activities: int
    tasks: int


class _Damaged(Exception):
    pass


def check_database(path: Path, progress: Progress) -> DatabaseSummary:
    """Raises `NotABackup` or `WrittenByNewerVersion`."""
    if sibling_path(path, WAL).exists():
        # The WAL either holds a part of this database, or belongs to another file and would destroy this one.
        raise NotABackup(path=path, detail=f"there is a {sibling_path(path, WAL).name} beside it")
    try:
        with closing(connect_read_only(path)) as connection:
            return _check_tables(connection, path, progress)
    except (_Damaged, CorruptRow, sqlite3.Error) as error:
        raise NotABackup(path=path, detail=str(error).rstrip(".")) from error
    except OSError as error:
        raise NotABackup(path=path, detail=f"it cannot be read ({error.strerror})") from error


def read_token_floor(path: Path) -> int:
    """Read the token floor of a database that may be damaged; 0 if it cannot be read."""
    if not path.exists():
        return 0
    try:
        with closing(connect_read_only(path)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = 'token_floor'").fetchone()
    except sqlite3.Error:
        return 0
    return int(row[0]) if row else 0


def _check_tables(connection: sqlite3.Connection, path: Path, progress: Progress) -> DatabaseSummary:
    size = path.stat().st_size
    progress("checking pages", 0, 1)
    problems = [row[0] for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_SHOWN})")]
    if problems != ["ok"]:
        raise _Damaged(f"SQLite finds it damaged ({'; '.join(problems)})")
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        raise _Damaged("it holds no tables of liveness")
    [(revision,)] = connection.execute("SELECT version_num FROM alembic_version")
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    Revisions().check(revision, meta.get("oldest_writer"))
    heads = dict(connection.execute("SELECT shard_id, last_seq FROM shards").fetchall())
    if sorted(heads) != list(range(int(meta.get("shard_count", "0")))):
        raise _Damaged(f"it was created with {meta.get('shard_count')} shards and holds {len(heads)}")
    log_entries = _check_log(connection, heads, progress)
    _check_verdicts(connection, heads)
    _check_deaths(connection, heads)
    _check_silences(connection, heads)
    return DatabaseSummary(
        bytes=size,
        revision=revision,
        shards=len(heads),
        log_entries=log_entries,
        workers=_check_workers(connection, heads, progress),
        activities=_check_activities(connection, len(heads), progress),
        tasks=_check_tasks(connection, progress),
    )


def _check_log(connection: sqlite3.Connection, heads: dict[int, int], progress: Progress) -> int:
    """Check that each row matches its checksum, rows are in order, and none is missing after a checkpoint."""
    checkpoint_seqs = {}
    for shard_id, seq, position, renewal_states in connection.execute(
        "SELECT shard_id, seq, position, payload FROM checkpoints"
    ):
        codec.verify_checksum(renewal_states, "checkpoints", shard_id, seq, position)
        _check_decodes(codec.decode_renewal_states, renewal_states, f"the checkpoint of shard {shard_id}")
        checkpoint_seqs[shard_id] = seq
    last_seqs: dict[int, int] = {}
    counts_after_checkpoint: Counter[int] = Counter()
    count = 0
    for values in _read_table(connection, "log", ", ".join(LogRow._fields), "id", progress):
        row = LogRow(*values)
        subject = f"entry {row.seq} of shard {row.shard_id}"
        _check_decodes(codec.decode_entry, row, subject)
        if row.seq <= last_seqs.get(row.shard_id, 0):
            raise _Damaged(f"{subject} is out of order")
        last_seqs[row.shard_id] = row.seq
        counts_after_checkpoint[row.shard_id] += row.seq > checkpoint_seqs.get(row.shard_id, 0)
        count += 1
    for shard_id, head in heads.items():
        if max(last_seqs.get(shard_id, 0), checkpoint_seqs.get(shard_id, 0)) > head:
            raise _Damaged(f"the log of shard {shard_id} goes beyond its head, {head}")
        if counts_after_checkpoint[shard_id] != head - checkpoint_seqs.get(shard_id, 0):
            raise _Damaged(f"entries are missing in the log of shard {shard_id} before its head, {head}")
    return count


def _check_workers(connection: sqlite3.Connection, heads: dict[int, int], progress: Progress) -> int:
    count = 0
    columns = "namespace, worker_key, shard_id, as_of_seq, number, state, payload"
    for namespace, key, shard_id, as_of_seq, *stored in _read_table(
        connection, "workers", columns, "1, 2", progress
    ):
        subject = f"worker {key} of namespace {namespace}"
        number, state, payload = stored
        codec.verify_checksum(payload, "workers", namespace, key, number, as_of_seq, state)
        _check_decodes(lambda row: codec.decode_worker(*row), stored, subject)
        if shard_of(namespace, key, len(heads)) != shard_id or as_of_seq > heads[shard_id]:
            raise _Damaged(f"{subject} does not fit its shard")
        count += 1
    return count


def _check_activities(connection: sqlite3.Connection, shards: int, progress: Progress) -> int:
    count = 0
    columns = "namespace, workflow_id, run_id, activity_id, shard_id, state, task_queue, worker_key, payload"
    for namespace, workflow_id, run_id, activity_id, shard_id, *stored in _read_table(
        connection, "activities", columns, "1, 2, 3, 4", progress
    ):
        id = ActivityId(workflow_id, run_id, activity_id)
        subject = f"activity {'/'.join(id)} of namespace {namespace}"
        *rest, payload = stored
        codec.verify_checksum(payload, "activities", namespace, *id, *rest)
        _check_decodes(lambda row: codec.decode_activity(*row), (id, *stored), subject)
        if shard_of(namespace, workflow_id, shards) != shard_id:
            raise _Damaged(f"{subject} does not fit its shard")
        count += 1
    return count


def _check_tasks(connection: sqlite3.Connection, progress: Progress) -> int:
    count = 0
    columns = "task_id, activity, shard_id, kind, namespace, worker_key, lease_epoch, died, created_wall_ms"
    for task_id, activity, *checksummed in _read_table(connection, "tasks", columns, "task_id", progress):
        codec.verify_checksum(activity, "tasks", *checksummed)
        _check_decodes(codec.decode_bound_activity, activity, f"task {task_id}")
        count += 1
    for namespace, payload in connection.execute("SELECT namespace, payload FROM config"):
        _check_decodes(codec.decode_settings, payload, f"the settings of namespace {namespace}")
    return count


def _check_verdicts(connection: sqlite3.Connection, heads: dict[int, int]) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'verdicts'").fetchone():
        for namespace, shard_id in connection.execute("SELECT namespace, shard_id FROM verdicts"):
            if shard_id not in heads:
                raise _Damaged(f"deaths of namespace {namespace} are counted in shard {shard_id}")


def _check_deaths(connection: sqlite3.Connection, heads: dict[int, int]) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'deaths'").fetchone():
        columns = "namespace, wall_ms, shard_id, seq, payload"
        for namespace, wall_ms, shard_id, seq, payload in connection.execute(f"SELECT {columns} FROM deaths"):
            codec.verify_checksum(payload, "deaths", namespace, wall_ms, shard_id, seq)
            _check_decodes(codec.decode_deaths, payload, f"the deaths of namespace {namespace} at {wall_ms}")
            if seq > heads.get(shard_id, 0):
                raise _Damaged(
                    f"the deaths of namespace {namespace} at {wall_ms} do not fit shard {shard_id}"
                )


def _check_silences(connection: sqlite3.Connection, heads: dict[int, int]) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'silences'").fetchone():
        for namespace, shard_id in connection.execute("SELECT DISTINCT namespace, shard_id FROM silences"):
            if shard_id not in heads:
                raise _Damaged(f"silences of namespace {namespace} are counted in shard {shard_id}")


def _read_table(
    connection: sqlite3.Connection, table: str, columns: str, order: str, progress: Progress
) -> Iterator[tuple[Any, ...]]:
    [(total,)] = connection.execute(f"SELECT COUNT(*) FROM {table}")
    for number, row in enumerate(connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")):
        if number % PROGRESS_EVERY_ROWS == 0:
            progress(f"checking {table}", number, total)
        yield row


def _check_decodes(decode: Callable[[Any], object], stored: object, subject: str) -> None:
    try:
        decode(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _Damaged(f"{subject} cannot be read ({error})") from error
