"""Real databases with a fencing guard and a protected table, and writers with separate transactions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Column, Connection, Engine, MetaData, Table, Text, create_engine, event, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from liveness.fencing import FencingGuard, StaleToken

T = TypeVar("T")

SECONDS_MAX = 60
"""The time-out of waits that must end; long enough for a busy machine."""


class FencingToken(NamedTuple):
    """The same fields as the SDK's token, whose import would load gRPC into every writing process."""

    attempt: int
    lease_epoch: int


metadata = MetaData()
guard = FencingGuard(metadata)
notes = Table("notes", metadata, Column("resource", Text, primary_key=True), Column("text", Text))
"""The table that the guard protects."""


def put_note(connection: Connection, resource: str, content: str) -> None:
    """Overwrite without looking, as a holder does that believes to be the only one."""
    connection.execute(notes.delete().where(notes.c.resource == resource))
    connection.execute(notes.insert().values(resource=resource, text=content))


def note(connection: Connection, resource: str) -> str | None:
    content: str | None = connection.scalar(select(notes.c.text).where(notes.c.resource == resource))
    return content


def sqlite_engine(url: str, *, wait_seconds: float = SECONDS_MAX) -> Engine:
    """SQLAlchemy's default engine, except for the time a statement waits for a lock."""
    return create_engine(url, poolclass=NullPool, connect_args={"timeout": wait_seconds})


def postgres_engine(url: str, **options: Any) -> AsyncEngine:
    return create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool, **options
    )


class Writer(ABC):
    """One connection; everything it runs is one transaction until `commit` or `rollback`."""

    @abstractmethod
    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Call `work` with the connection as its first argument."""

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def until_waiting(self) -> None:
        """Return when its statement waits for a lock of another writer."""

    @abstractmethod
    async def close(self) -> None: ...

    async def check(self, resource: str, token: FencingToken, holder: str = "") -> None:
        await self.run(guard.check, resource, token, holder)

    async def refusal(self, resource: str, token: FencingToken) -> StaleToken | None:
        """Run a check and return its refusal."""
        try:
            await self.check(resource, token)
        except StaleToken as refused:
            return refused
        return None


class SqliteWriter(Writer):
    """Runs in its own thread, because it blocks while it waits."""

    def __init__(self, engine: Engine) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._engine = engine
        self._connection: Connection | None = None
        self._writes = asyncio.Event()
        loop = asyncio.get_running_loop()

        @event.listens_for(engine, "before_cursor_execute")
        def on_statement(_: Connection, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith("UPDATE"):
                loop.call_soon_threadsafe(self._writes.set)

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        self._writes.clear()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, *args)

    def _run(self, work: Callable[..., T], *args: Any) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        return work(self._connection, *args)

    async def commit(self) -> None:
        await self.run(lambda connection: connection.commit())

    async def rollback(self) -> None:
        await self.run(lambda connection: connection.rollback())

    async def until_waiting(self) -> None:
        """SQLite does not report waiters, but a write that starts while another holds the file must wait."""
        async with asyncio.timeout(SECONDS_MAX):
            await self._writes.wait()

    async def close(self) -> None:
        await self.run(lambda connection: connection.close())
        self._thread.shutdown()
        self._engine.dispose()


class PostgresWriter(Writer):
    def __init__(self, connection: AsyncConnection, observer: AsyncConnection, backend: int) -> None:
        self._connection = connection
        self._observer = observer
        self._backend = backend

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        return await self._connection.run_sync(work, *args)

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def until_waiting(self) -> None:
        blockers = text("SELECT cardinality(pg_blocking_pids(:backend))")
        async with asyncio.timeout(SECONDS_MAX):
            while not await self._observer.scalar(blockers, {"backend": self._backend}):
                await asyncio.sleep(0)

    async def close(self) -> None:
        await self._connection.close()
        await self._observer.close()


class FencedDatabase:
    """One database with both tables."""

    def __init__(self, dialect: str, url: str) -> None:
        self.dialect = dialect
        self.url = url
        self._writers: list[Writer] = []

    async def writer(self, **options: Any) -> Writer:
        """Create a writer, which plays one worker. The options are those of the PostgreSQL engine."""
        writer: Writer
        if self.dialect == "sqlite":
            writer = SqliteWriter(sqlite_engine(self.url))
        else:
            connection = await postgres_engine(self.url, **options).connect()
            backend = await connection.scalar(text("SELECT pg_backend_pid()"))
            await connection.rollback()
            observer = await postgres_engine(self.url, isolation_level="AUTOCOMMIT").connect()
            writer = PostgresWriter(connection, observer, backend)
        self._writers.append(writer)
        return writer

    async def read_committed(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work` on the committed state."""
        writer = await self.writer()
        try:
            return await writer.run(work, *args)
        finally:
            await self.roll_back(writer)

    async def roll_back(self, writer: Writer) -> None:
        """Close the writer and roll back its uncommitted work."""
        self._writers.remove(writer)
        await writer.close()

    async def prepare(self) -> None:
        writer = await self.writer()
        await writer.run(metadata.create_all)
        await writer.commit()

    async def close(self) -> None:
        """Close all writers concurrently, because some may wait for others."""
        await asyncio.gather(*(self.roll_back(writer) for writer in list(self._writers)))
