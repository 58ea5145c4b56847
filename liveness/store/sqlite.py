"""SQLite: one writer connection on one thread, which also owns WAL checkpoints; one reader on another thread, and one for searches.

`synchronous=FULL` in WAL mode syncs the log in every commit, so an acknowledged commit survives power loss.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from liveness.store.database import SEARCH_S_MAX, ConnectionCounts
from liveness.store.errors import (
    CannotOpenStore,
    CommitRejected,
    NoSpaceLeft,
    ReadFailed,
    RestoreInterrupted,
    StoreBroken,
    StoreError,
    StoreInUse,
    WalDamaged,
)
from liveness.store.file_permissions import create_private, open_private, restrict_to_owner
from liveness.store.sqlite_wal import has_lost_commits

T = TypeVar("T")

WAL_PAGES_BEFORE_CHECKPOINT = 8_000  # 32 MB: a checkpoint stalls one commit, so not too often
WRITER_CACHE_KB = 65_536
READER_CACHE_KB = 8_192
STATEMENT_CACHE = 512
_SQLITE_HEADER = b"SQLite format 3\0"

# After these errors, the file may not hold what was written to it.
_BROKEN_CODES = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


# Suffixes of files beside a database.
WAL, SHARED_MEMORY, LOCK = "-wal", "-shm", ".lock"
RESTORING_SUFFIX = ".restoring"
"""A prepared backup that is about to replace the database, whose WAL may be deleted already."""


def sibling_path(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def acquire_lock(path: Path) -> IO[str]:
    """Acquire the exclusive right to write to the file, until the returned lock is closed or the process ends."""
    lock_path = sibling_path(path, LOCK)
    try:
        lock = open(lock_path, "a+", opener=open_private)  # noqa: SIM115  # returned
    except OSError as error:
        raise CannotOpenStore(detail=f"cannot open {lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise StoreInUse(path=path, holder=f" ({holder})" if holder else "") from error
    return lock


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that writes neither to the file nor to its WAL, and never checkpoints."""
    # Without a WAL no process has the file open, so it is immutable. In any other mode SQLite would create a WAL in order
    # to read the file, and leave it behind.
    mode = "mode=ro" if sibling_path(path, WAL).exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=10)


class SqliteDatabase:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_file: IO[str] | None = None
        self._writer = _JobThread("liveness-sqlite-writer")
        self._reader = _JobThread("liveness-sqlite-reader", skips_abandoned=True)
        self._write_engine = _create_engine(path, writer=True)
        self._write_connection: Connection | None = None
        """Opened once, on the writer's thread."""
        self._read_engine = _create_engine(path, writer=False)
        self._searcher = _JobThread("liveness-sqlite-searcher", skips_abandoned=True)
        self._search_engine = _create_engine(path, writer=False)
        self._search_turn = asyncio.Lock()
        self._searching: sqlite3.Connection | None = None
        """The connection on which searches run."""
        self._broken: StoreBroken | None = None

    def lock(self) -> None:
        """Refuse a second server on the same file. The kernel releases the lock when the process ends."""
        self._check_is_sqlite()
        lock = acquire_lock(self.path)
        if sibling_path(self.path, RESTORING_SUFFIX).exists():
            lock.close()
            raise RestoreInterrupted(path=self.path)
        self._lock_file = lock
        try:
            create_private(self.path)
            restrict_to_owner(
                sibling_path(self.path, suffix) for suffix in ("", WAL, SHARED_MEMORY, "-journal", LOCK)
            )
        except OSError as error:
            self._lock_file.close()
            raise CannotOpenStore(detail=f"cannot write {self.path}: {error.strerror}") from error

    def _check_is_sqlite(self) -> None:
        """Refuse a file that is not SQLite before anything is written to it or beside it."""
        try:
            with self.path.open("rb") as file:
                start = file.read(len(_SQLITE_HEADER))
        except FileNotFoundError:
            return
        except OSError as error:
            raise CannotOpenStore(detail=f"cannot read {self.path}: {error.strerror}") from error
        if start not in (b"", _SQLITE_HEADER):
            raise CannotOpenStore(detail=f"{self.path} is not a SQLite file; choose another with --db")

    def write_lock_holder(self, holder: str) -> None:
        """Record the holder of the lock, for the error message of other processes."""
        assert self._lock_file is not None, "the lock was not acquired"
        try:
            self._lock_file.seek(0)
            self._lock_file.truncate()
            self._lock_file.write(holder)
            self._lock_file.flush()
        except OSError as error:
            raise CannotOpenStore(detail=f"cannot write beside {self.path}: {error.strerror}") from error

    async def write(self, work: Callable[[Connection], T]) -> T:
        if self._broken is not None:
            raise self._broken
        return await self._writer.run(self._write, work)

    def _write(self, work: Callable[[Connection], T]) -> T:
        try:
            if self._write_connection is None:
                self._write_connection = self._open_writer()
            with self._write_connection.begin():
                return work(self._write_connection)
        except StoreError:
            raise
        except (DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
            if code in _BROKEN_CODES:
                # A failed fsync may have dropped the dirty pages: a retry would report success without them.
                self._broken = StoreBroken(detail=str(cause))
                raise self._broken from error
            rejected = NoSpaceLeft if code == sqlite3.SQLITE_FULL else CommitRejected
            raise rejected(detail=str(cause)) from error

    def _open_writer(self) -> Connection:
        connection = self._write_engine.connect()
        # Connecting has recovered the WAL. Nothing has been written yet.
        if has_lost_commits(sibling_path(self.path, WAL), sibling_path(self.path, SHARED_MEMORY)):
            connection.close()
            raise WalDamaged(path=sibling_path(self.path, WAL))
        return connection

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._reader.run(self._read, work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._read_engine.begin() as connection:
                return work(connection)
        except (DBAPIError, sqlite3.Error) as error:
            raise ReadFailed(detail=str(error)) from error

    async def search(self, work: Callable[[Connection], T]) -> T:
        async with self._search_turn:
            limit = asyncio.get_running_loop().call_later(SEARCH_S_MAX, self._interrupt_search)
            try:
                return await self._searcher.run(self._search, work)
            except asyncio.CancelledError:
                # Nobody waits for it any more. The next one starts on the same thread when this one has ended.
                self._interrupt_search()
                raise
            finally:
                limit.cancel()

    def _search(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._search_engine.begin() as connection:
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                self._searching = driver
                return work(connection)
        except (DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise ReadFailed(
                    detail=f"it did not answer within {SEARCH_S_MAX:.0f} s; ask for less at a time"
                ) from error
            raise ReadFailed(detail=str(error)) from error

    def _interrupt_search(self) -> None:
        if self._searching is not None:
            self._searching.interrupt()

    async def end_sessions(self, owners: Collection[str]) -> int:
        return 0  # the file belongs to one process

    def connection_counts(self) -> ConnectionCounts:
        return ConnectionCounts()  # there is no database server

    async def close(self) -> None:
        self._interrupt_search()
        await self._searcher.run(self._search_engine.dispose)
        await self._reader.run(self._read_engine.dispose)
        await self._writer.run(self._close_writer)
        self._searcher.stop()
        self._reader.stop()
        self._writer.stop()
        if self._lock_file is not None:
            self._lock_file.close()

    def _close_writer(self) -> None:
        if self._write_connection is not None:
            self._write_connection.close()
        self._write_engine.dispose()


class _JobThread:
    """One thread that runs jobs in order."""

    def __init__(self, name: str, *, skips_abandoned: bool = False) -> None:
        """`skips_abandoned`: do not begin a job whose caller has gone."""
        self._skips_abandoned = skips_abandoned
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon thread: an fsync that hangs must not keep the process from exiting.
        Thread(target=self._run_jobs, name=name, daemon=True).start()

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, args, loop, done, self._skips_abandoned))
        return await done

    def stop(self) -> None:
        """End the thread after the jobs in the queue."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.is_needless():
                continue
            try:
                report = partial(_set_result, job.done, job.work(*job.args))
            except BaseException as error:  # noqa: BLE001  # passed on to the caller
                report = partial(_set_exception, job.done, error)
            if not job.loop.is_closed():
                job.loop.call_soon_threadsafe(report)


class _Job(NamedTuple):
    work: Callable[..., Any]
    args: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    is_skipped_when_abandoned: bool

    def is_needless(self) -> bool:
        return self.is_skipped_when_abandoned and self.done.cancelled()


def _set_result(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():  # the caller may have been cancelled
        done.set_result(result)


def _set_exception(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


def _create_engine(path: Path, *, writer: bool) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=StaticPool,
        connect_args={"check_same_thread": False, "cached_statements": STATEMENT_CACHE, "timeout": 10},
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _: object) -> None:
        # `on_begin` starts transactions; the driver must not start them implicitly.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES_BEFORE_CHECKPOINT}")
        connection.execute(f"PRAGMA cache_size=-{WRITER_CACHE_KB if writer else READER_CACHE_KB}")
        if not writer:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("BEGIN IMMEDIATE" if writer else "BEGIN")

    return engine
