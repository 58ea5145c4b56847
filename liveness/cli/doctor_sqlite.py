"""Check a SQLite database without changing it, and measure its disk with a scratch file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection

from liveness.cli.doctor_checks import (
    COMMITS_MEASURED,
    CheckResult,
    commit_latency,
    failed,
    format_bytes,
    growth,
    ok,
    schema_revision,
    shard_count,
    warning,
)
from liveness.clock import SystemClock, stopwatch
from liveness.store.errors import StoreError
from liveness.store.size import SizeSample, sqlite_size, storage_of
from liveness.store.sqlite import SqliteDatabase, connect_read_only

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 20
WRITE_VERSION_WAL = 2
WAL_RESET_FIXED = (3, 51, 3)
LOW_SPACE_BYTES = 1 << 30
NO_SPACE_BYTES = 64 << 20
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def run_checks(path: Path, shards: int) -> Iterator[CheckResult]:
    yield _library_version()
    folder = path.absolute().parent
    if not folder.is_dir():
        yield failed("folder", f"{folder} is not a folder", f"Create it: mkdir -p {folder}")
        return
    yield from _check_file(path, shards)
    yield _check_disk_space(folder)
    yield from _check_commits(folder)


def _library_version() -> CheckResult:
    if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
        return ok(
            "SQLite library",
            sqlite3.sqlite_version,
            "Before 3.51.3 two writing connections can lose data when the WAL is reset; liveness has one "
            "writer, so this does not concern it. Let no other program write to the file.",
        )
    return ok("SQLite library", sqlite3.sqlite_version)


def _check_file(path: Path, shards: int) -> Iterator[CheckResult]:
    if not path.exists():
        yield ok("database", f"{path} does not exist yet", "It is created at the first start.")
        return
    try:
        with path.open("rb") as file:
            header_bytes = file.read(HEADER_BYTES)
    except OSError as error:
        yield failed(
            "database",
            f"{path} cannot be read: {error.strerror}",
            "Correct its permissions, or choose another file with --db.",
        )
        return
    if header_bytes and not header_bytes.startswith(MAGIC):
        yield failed("database", f"{path} is not a SQLite database", "Choose another file with --db.")
        return
    if not os.access(path, os.W_OK):
        yield failed("database", f"{path} is not writable", "Correct its permissions.")
        return
    yield ok("database", f"{path}, {format_bytes(path.stat().st_size)}")
    if header_bytes:
        yield _journal_mode(header_bytes)
    try:
        with closing(connect_read_only(path)) as connection:
            yield from _check_contents(connection, shards)
    except sqlite3.Error as error:
        yield failed(
            "database",
            f"{path} cannot be read: {error}",
            "Check its permissions; if it is damaged, restore a backup.",
        )


def _journal_mode(header: bytes) -> CheckResult:
    """Read the journal mode from the file header: a read-only connection does not report it."""
    if header[18:20] == bytes((WRITE_VERSION_WAL, WRITE_VERSION_WAL)):
        return ok("journal mode", "wal")
    return warning(
        "journal mode", "not wal", "The server turns on WAL when it starts; let nothing turn it off."
    )


def _check_contents(connection: sqlite3.Connection, shards: int) -> Iterator[CheckResult]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" not in tables:
        if tables:
            yield failed("tables", "those of another program", "Choose another file with --db.")
        else:
            yield schema_revision(None)
        return
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    meta = {}
    if "meta" in tables:
        meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    yield schema_revision(row and row[0], meta.get("oldest_writer"))
    yield from shard_count(meta.get("shard_count"), shards)
    if "sizes" in tables:
        yield _check_growth(connection)


def _check_growth(connection: sqlite3.Connection) -> CheckResult:
    def query(statement: str) -> list[tuple[Any, ...]]:
        return connection.execute(statement).fetchall()

    samples = [SizeSample(*row) for row in query("SELECT wall_ms, bytes FROM sizes ORDER BY wall_ms")]
    return growth(storage_of(sqlite_size(query), samples, SystemClock().wall_ms()))


def _check_disk_space(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    saw = f"{format_bytes(free)} free where the database lies"
    if free < NO_SPACE_BYTES:
        return failed("disk space", saw, "Make room before starting the server.")
    if free < LOW_SPACE_BYTES:
        return warning("disk space", saw, "Make room soon.")
    return ok("disk space", saw)


def _check_commits(folder: Path) -> Iterator[CheckResult]:
    """Measure commits through the store's own connection, so that the figures hold for the server."""
    try:
        with TemporaryDirectory(prefix=".liveness-doctor-", dir=folder) as scratch:
            mode, synchronous, median_s = asyncio.run(_measure_commits(Path(scratch) / "scratch.db"))
    except (OSError, StoreError) as error:
        yield failed("commits", f"cannot commit in {folder}: {error}", "The server needs to write there.")
        return
    saw = f"journal_mode={mode}, synchronous={synchronous}"
    if mode == "wal" and synchronous in ("FULL", "EXTRA"):
        yield ok("durability", f"{saw} on the server's connection")
    else:
        yield failed("durability", saw, "WAL does not work on this file system; use a local disk.")
    yield commit_latency(median_s, f"a scratch file in {folder}")


async def _measure_commits(path: Path) -> tuple[str, str, float]:
    database = SqliteDatabase(path)

    def prepare(connection: Connection) -> tuple[str, int]:
        connection.exec_driver_sql("CREATE TABLE scratch (n INTEGER)")
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        return str(mode), int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    def insert(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO scratch VALUES (1)")

    try:
        mode, synchronous = await database.write(prepare)
        durations_s = []
        for _ in range(COMMITS_MEASURED):
            elapsed_s = stopwatch()
            await database.write(insert)
            durations_s.append(elapsed_s())
    finally:
        await database.close()
    return mode, SYNCHRONOUS.get(synchronous, str(synchronous)), median(durations_s)
