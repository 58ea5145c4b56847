"""Copy a SQLite database while a server may be writing to it.

One read transaction makes the whole copy, so the copy is the database as of one commit. Readers and the writer of a WAL do
not block each other: a backup costs a running server some disk bandwidth, and the WAL cannot restart, and so grows, until
the copy is done. The connection only reads. This module never checkpoints, because before 3.51.3 SQLite can lose commits
if a connection other than the writer does.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from liveness.store.errors import CannotOpenStore, NotABackup, RestoreInterrupted, StoreError
from liveness.store.integrity import DatabaseSummary, Progress, check_database
from liveness.store.sqlite import RESTORING_SUFFIX, SHARED_MEMORY, WAL, connect_read_only, sibling_path

PARTIAL_SUFFIX = ".unfinished"
PAGES_PER_STEP = 64
"""256 KB, synced before the next step: the server's next commit has to wait for dirty pages in the page cache. During a copy
of 300 MB the slowest heartbeat took 22 ms; with steps of 4 MB it took 43 ms, and without syncing in between 91 ms."""
COPY_ATTEMPTS_MAX = 3


class BackupFailed(StoreError):
    template = "The backup was not made: {detail}."

    detail: str


def create_backup(
    source: Path, target: Path, progress: Progress, *, replace: bool = False
) -> DatabaseSummary:
    """Create `target` complete and verified, or not at all."""
    if not source.exists():
        raise CannotOpenStore(detail=f"{source} does not exist; choose another with --db")
    if sibling_path(source, RESTORING_SUFFIX).exists():
        raise RestoreInterrupted(path=source)
    if target.exists() and target.samefile(source):
        raise BackupFailed(detail=f"{target} is the database itself; choose another name")
    if target.is_dir():
        raise BackupFailed(detail=f"{target} is a folder; name a file")
    if target.exists() and not replace:
        raise BackupFailed(detail=f"{target} exists; choose another name or use --force")
    with partial_file(target) as copy:
        try:
            _copy_unless_changed(source, copy, progress)
        except sqlite3.Error as error:
            raise BackupFailed(detail=f"{source} could not be copied to {target} ({error})") from error
        try:
            summary = check_database(copy, progress)
        except NotABackup as error:
            raise BackupFailed(detail=f"{source} itself is damaged: {error.detail}") from error
        replace_durably(copy, target)
    return summary


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """Provide an empty file beside `target` to work on, and remove it at the end unless it was renamed.

    Leftovers of an interrupted run are removed first.
    """
    path = sibling_path(target, PARTIAL_SUFFIX)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BackupFailed(detail=f"cannot write {path} ({error.strerror})") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise BackupFailed(detail=f"{path} is being written by another process") from error
    try:
        _remove_side_files(path)
        os.fchmod(file, 0o600)  # a leftover may be readable to others
        os.truncate(path, 0)
        yield path
    except OSError as error:
        raise BackupFailed(detail=f"{path} could not be written ({error.strerror})") from error
    finally:
        _remove_side_files(path)
        # After the rename, a file of this name may belong to another process.
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            path.unlink()
        os.close(file)


def _remove_side_files(path: Path) -> None:
    for suffix in (WAL, SHARED_MEMORY, "-journal"):
        sibling_path(path, suffix).unlink(missing_ok=True)


def replace_durably(prepared: Path, target: Path) -> None:
    """Rename atomically and durably."""
    sync(prepared)
    prepared.replace(target)
    sync(target.absolute().parent)


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class _FileState(NamedTuple):
    """Identifies the content of a database file that no process has open."""

    device: int
    inode: int
    size: int
    changed_ns: int
    wal: bool


def _read_file_state(path: Path) -> _FileState:
    found = path.stat()
    return _FileState(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, wal=sibling_path(path, WAL).exists()
    )


def _copy_unless_changed(source: Path, copy: Path, progress: Progress) -> None:
    for _ in range(COPY_ATTEMPTS_MAX):
        before = _read_file_state(source)
        _copy(source, copy, progress)
        # A file without a WAL is read without locks. If a server started meanwhile, the copy may be inconsistent.
        if before.wal or _read_file_state(source) == before:
            return
        os.truncate(copy, 0)
    raise BackupFailed(detail=f"servers were started and stopped on {source} all the time; try again")


def _copy(source: Path, copy: Path, progress: Progress) -> None:
    with closing(connect_read_only(source)) as reading, closing(sqlite3.connect(copy)) as writing:
        # The copy need not survive a power failure: it gets its real name only after a sync.
        writing.execute("PRAGMA journal_mode=OFF")
        writing.execute("PRAGMA synchronous=OFF")
        # Without a transaction, each commit of the server between two steps would restart the copy.
        reading.isolation_level = None
        reading.execute("BEGIN")
        reading.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()

        def on_step(_: int, remaining: int, total: int) -> None:
            sync(copy)
            progress("copying", total - remaining, total)

        reading.backup(writing, pages=PAGES_PER_STEP, progress=on_step)
