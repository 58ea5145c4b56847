"""Is a SQLite file, which nobody has open, a whole database of ours? Everything is read; nothing is changed."""

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
from liveness.store.sqlite import WAL, beside, connect_to_read

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and out of how much."""

TOLD_EVERY_ROWS = 10_000
PROBLEMS_SHOWN = 3


class Contents(NamedTuple):
    """What a database holds, counted while it was checked."""

    bytes: int
    revision: str
    shards: int
    log_entries: int
    workers: int
    activities: int
    tasks: int


class _Damaged(Exception):
    pass


def inspect(path: Path, progress: Progress) -> Contents:
    """Raises `NotABackup` or `WrittenByNewerVersion`."""
    if beside(path, WAL).exists():
        # Part of what belongs to it lies in there, or it belongs to another file and would destroy this one.
        raise NotABackup(path=path, detail=f"there is a {beside(path, WAL).name} beside it")
    try:
        with closing(connect_to_read(path)) as connection:
            return _inspect(connection, path, progress)
    except (_Damaged, CorruptRow, sqlite3.Error) as error:
        raise NotABackup(path=path, detail=str(error).rstrip(".")) from error
    except OSError as error:
        raise NotABackup(path=path, detail=f"it cannot be read ({error.strerror})") from error


def floor_of(path: Path) -> int:
    """The floor of its tokens, if a file can still tell: a database may be restored because it is damaged."""
    if not path.exists():
        return 0
    try:
        with closing(connect_to_read(path)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = 'token_floor'").fetchone()
    except sqlite3.Error:
        return 0
    return int(row[0]) if row else 0


def _inspect(connection: sqlite3.Connection, path: Path, progress: Progress) -> Contents:
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
    return Contents(
        bytes=size,
        revision=revision,
        shards=len(heads),
        log_entries=log_entries,
        workers=_check_workers(connection, heads, progress),
        activities=_check_activities(connection, len(heads), progress),
        tasks=_check_tasks(connection, progress),
    )


def _check_log(connection: sqlite3.Connection, heads: dict[int, int], progress: Progress) -> int:
    """Each row matches its checksum, each shard's rows are in order, and none is missing behind its checkpoint."""
    folded = {}
    for shard_id, seq, position, pulses in connection.execute(
        "SELECT shard_id, seq, position, payload FROM checkpoints"
    ):
        codec.check_seal(pulses, "checkpoints", shard_id, seq, position)
        _readable(codec.decode_pulses, pulses, f"the checkpoint of shard {shard_id}")
        folded[shard_id] = seq
    last: dict[int, int] = {}
    later: Counter[int] = Counter()
    count = 0
    for values in _rows(connection, "log", ", ".join(LogRow._fields), "id", progress):
        row = LogRow(*values)
        place = f"entry {row.seq} of shard {row.shard_id}"
        _readable(codec.decode_entry, row, place)
        if row.seq <= last.get(row.shard_id, 0):
            raise _Damaged(f"{place} is out of order")
        last[row.shard_id] = row.seq
        later[row.shard_id] += row.seq > folded.get(row.shard_id, 0)
        count += 1
    for shard_id, head in heads.items():
        if max(last.get(shard_id, 0), folded.get(shard_id, 0)) > head:
            raise _Damaged(f"the log of shard {shard_id} goes beyond its head, {head}")
        if later[shard_id] != head - folded.get(shard_id, 0):
            raise _Damaged(f"entries are missing in the log of shard {shard_id} before its head, {head}")
    return count


def _check_workers(connection: sqlite3.Connection, heads: dict[int, int], progress: Progress) -> int:
    count = 0
    columns = "namespace, worker_key, shard_id, as_of_seq, number, state, payload"
    for namespace, key, shard_id, as_of_seq, *stored in _rows(
        connection, "workers", columns, "1, 2", progress
    ):
        place = f"worker {key} of namespace {namespace}"
        number, state, payload = stored
        codec.check_seal(payload, "workers", namespace, key, number, as_of_seq, state)
        _readable(lambda row: codec.decode_worker(*row), stored, place)
        if shard_of(namespace, key, len(heads)) != shard_id or as_of_seq > heads[shard_id]:
            raise _Damaged(f"{place} does not fit its shard")
        count += 1
    return count


def _check_activities(connection: sqlite3.Connection, shards: int, progress: Progress) -> int:
    count = 0
    columns = "namespace, workflow_id, run_id, activity_id, shard_id, state, task_queue, worker_key, payload"
    for namespace, workflow_id, run_id, activity_id, shard_id, *stored in _rows(
        connection, "activities", columns, "1, 2, 3, 4", progress
    ):
        id = ActivityId(workflow_id, run_id, activity_id)
        place = f"activity {'/'.join(id)} of namespace {namespace}"
        *rest, payload = stored
        codec.check_seal(payload, "activities", namespace, *id, *rest)
        _readable(lambda row: codec.decode_activity(*row), (id, *stored), place)
        if shard_of(namespace, workflow_id, shards) != shard_id:
            raise _Damaged(f"{place} does not fit its shard")
        count += 1
    return count


def _check_tasks(connection: sqlite3.Connection, progress: Progress) -> int:
    count = 0
    columns = "task_id, activity, shard_id, kind, namespace, worker_key, lease_epoch, died, created_wall_ms"
    for task_id, activity, *place in _rows(connection, "tasks", columns, "task_id", progress):
        codec.check_seal(activity, "tasks", *place)
        _readable(codec.decode_bound_activity, activity, f"task {task_id}")
        count += 1
    for namespace, payload in connection.execute("SELECT namespace, payload FROM config"):
        _readable(codec.decode_settings, payload, f"the settings of namespace {namespace}")
    return count


def _check_verdicts(connection: sqlite3.Connection, heads: dict[int, int]) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'verdicts'").fetchone():
        for namespace, shard_id in connection.execute("SELECT namespace, shard_id FROM verdicts"):
            if shard_id not in heads:
                raise _Damaged(f"deaths of namespace {namespace} are counted in shard {shard_id}")


def _rows(
    connection: sqlite3.Connection, table: str, columns: str, order: str, progress: Progress
) -> Iterator[tuple[Any, ...]]:
    [(total,)] = connection.execute(f"SELECT COUNT(*) FROM {table}")
    for number, row in enumerate(connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")):
        if number % TOLD_EVERY_ROWS == 0:
            progress(f"checking {table}", number, total)
        yield row


def _readable(decode: Callable[[Any], object], stored: object, place: str) -> None:
    try:
        decode(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _Damaged(f"{place} cannot be read ({error})") from error
