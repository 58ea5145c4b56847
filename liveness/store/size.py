"""The size of the database, the room that is left, and its growth.

SQLite's file and PostgreSQL's tables do not shrink when rows are deleted; the space is used again. So the growth is that of the
content, and space that can be used again counts as free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from liveness.store.bulk import insert_rows
from liveness.store.schema import sizes

DAY_MS = 86_400_000
GROWTH_WINDOW_MS = DAY_MS
GROWTH_WINDOW_MS_MIN = 10 * 60_000
"""A shorter time says nothing about a day."""
SIZES_KEPT_MS = 7 * DAY_MS

EVENT_OVERHEAD_BYTES = 200
"""About what an event takes in the log and its indexes beside its payload."""

Query = Callable[[str], Sequence[Any]]
"""Runs a statement and returns its rows."""


class DatabaseSize(NamedTuple):
    used_bytes: int
    """The content. On PostgreSQL an estimate."""
    disk_bytes: int
    """What the database takes on its disk, with space that it will use again."""
    free_bytes: int | None
    """How much more content there is room for; None if it is not known, as on PostgreSQL."""


class SizeSample(NamedTuple):
    wall_ms: int
    used_bytes: int


class Storage(NamedTuple):
    size: DatabaseSize
    growth_bytes_per_day: int | None
    """By the last day, or less if less is known; None if too little is."""

    @property
    def days_until_full(self) -> float | None:
        """None if the room that is left is not known, or does not get less."""
        if self.size.free_bytes is None or not self.growth_bytes_per_day or self.growth_bytes_per_day < 0:
            return None
        return self.size.free_bytes / self.growth_bytes_per_day


def growth_bytes_per_day(samples: Sequence[SizeSample]) -> int | None:
    """The growth from the first to the last sample. `samples`: oldest first."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    if (elapsed_ms := last.wall_ms - first.wall_ms) < GROWTH_WINDOW_MS_MIN:
        return None
    return round((last.used_bytes - first.used_bytes) * DAY_MS / elapsed_ms)


def storage_of(size: DatabaseSize, samples: Sequence[SizeSample], wall_ms: int) -> Storage:
    """`samples`: the recorded sizes, oldest first."""
    # A wall clock that was set back leaves samples in the future.
    recent = [sample for sample in samples if wall_ms - GROWTH_WINDOW_MS <= sample.wall_ms < wall_ms]
    return Storage(size, growth_bytes_per_day([*recent, SizeSample(wall_ms, size.used_bytes)]))


def read_storage(connection: Connection, wall_ms: int) -> Storage:
    recorded = select(sizes.c.wall_ms, sizes.c.bytes).order_by(sizes.c.wall_ms)
    samples = [SizeSample(*row) for row in connection.execute(recorded)]
    return storage_of(read_size(connection), samples, wall_ms)


def record_size(connection: Connection, wall_ms: int) -> None:
    """The caller has locked the epoch of a shard that only one node owns, so that one node keeps the record."""
    rows = [(wall_ms, read_size(connection).used_bytes)]
    insert_rows(connection, sizes, rows, replace_on=("wall_ms",))
    connection.execute(delete(sizes).where(sizes.c.wall_ms < wall_ms - SIZES_KEPT_MS))


def read_size(connection: Connection) -> DatabaseSize:
    def query(statement: str) -> Sequence[Any]:
        return connection.exec_driver_sql(statement).all()

    return sqlite_size(query) if connection.dialect.name == "sqlite" else _postgres_size(query)


def sqlite_size(query: Query) -> DatabaseSize:
    [[pages]], [[free_pages]], [[page_bytes]] = (
        query(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
    )
    path = next((file for _, name, file in query("PRAGMA database_list") if name == "main"), "")
    disk_bytes, free_bytes = pages * page_bytes, None
    try:
        disk = os.statvfs(path)
        free_bytes = disk.f_bavail * disk.f_frsize + free_pages * page_bytes
        disk_bytes += Path(f"{path}-wal").stat().st_size
    except OSError:
        pass  # no WAL yet, or no file: a database in memory, or one whose file was deleted
    return DatabaseSize((pages - free_pages) * page_bytes, disk_bytes, free_bytes)


def _postgres_size(query: Query) -> DatabaseSize:
    [row] = query(
        "SELECT pg_database_size(current_database()), pg_total_relation_size('log'),"
        # PostgreSQL counts rows twice for a while if they were analyzed before their session reported them; there are never
        # more rows than ids.
        " least((SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = 'log'::regclass),"
        " (SELECT max(id) - min(id) + 1 FROM log)),"
        " (SELECT avg(length(payload)) FROM (SELECT payload FROM log ORDER BY id DESC LIMIT 500) AS newest)"
    )
    disk_bytes, log_bytes, live_rows, payload_bytes = (int(value or 0) for value in row)
    # What was deleted leaves room in the table, of which PostgreSQL keeps no account that can be read cheaply.
    used_log_bytes = live_rows * (payload_bytes + EVENT_OVERHEAD_BYTES)
    return DatabaseSize(disk_bytes - max(0, log_bytes - used_log_bytes), disk_bytes, None)
