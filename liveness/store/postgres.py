"""PostgreSQL through asyncpg. Commits are synchronous, whatever the default of the database server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sqlalchemy import Connection, column, event, func, select, table
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import QueuePool

from liveness.store.database import SEARCH_S_MAX, ConnectionCounts
from liveness.store.errors import (
    CommitRejected,
    CommitUnknown,
    NoSpaceLeft,
    ReadFailed,
    StoreError,
    ValueRefused,
)
from liveness.store.postgres_hosts import PrimaryConnector

T = TypeVar("T")

CONNECTIONS_MAX = 8
"""The default. The group commit needs one connection; reads, the registry and maintenance share the others."""
CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 10.0
"""After this time the store stops waiting, though the statement has not failed: whether a commit took place is then unknown,
and its shards are re-read."""
IDLE_IN_TRANSACTION_MS_MAX = 10_000
"""The default. How long a client may be silent in the middle of a transaction."""

_SESSION_SETTINGS = {
    "synchronous_commit": "on",
    # The database server aborts statements that no client waits for, even if the client cannot cancel them.
    "statement_timeout": f"{STATEMENT_TIMEOUT_S + 2:.0f}s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}

DISK_FULL = "53100"
DATA_EXCEPTION = "22"
"""The class of all errors that a value causes, such as a text with a NUL."""
"""The SQLSTATE of a statement that needed more disk space than there is."""

_GENERATION = "generation"
_UNREPLICATED = "unreplicated"
_CONNECTION_ERRORS = (DBAPIError, PoolTimeout, OSError)


class PostgresDatabase:
    def __init__(
        self,
        url: str,
        connections_max: int = CONNECTIONS_MAX,
        idle_ms_max: int = IDLE_IN_TRANSACTION_MS_MAX,
        owner: str = "",
    ) -> None:
        """`owner`: the node that these sessions belong to; other nodes may end them by this name.

        `idle_ms_max`: a transaction is rolled back after so long without a statement. Otherwise a process that hangs, or is
        cut off by the network, would keep its row locks and so keep others from taking its shards.
        """
        self._connections_max = connections_max
        pool_size = max(1, connections_max // 2)
        self._engine = create_async_engine(
            make_url(url).set(drivername="postgresql+asyncpg"),
            pool_size=pool_size,
            max_overflow=connections_max - pool_size,
            pool_timeout=STATEMENT_TIMEOUT_S,
            pool_pre_ping=False,
            connect_args={
                "async_creator_fn": PrimaryConnector().connect,
                "timeout": CONNECT_TIMEOUT_S,
                "command_timeout": STATEMENT_TIMEOUT_S,
                "server_settings": {
                    **_SESSION_SETTINGS,
                    "application_name": _session_name(owner),
                    "idle_in_transaction_session_timeout": str(idle_ms_max),
                },
                "prepared_statement_cache_size": 512,
            },
        )
        # Reads never use all connections, so commits always find one.
        self._read_limit = asyncio.Semaphore(max(1, connections_max - 2))
        self._search_limit = asyncio.Semaphore(max(1, connections_max - 4))
        """Searches never use all connections for reads."""
        self._generation = 0
        """Rises when a connection timed out: other connections of the same age are probably dead as well."""
        event.listen(self._engine.sync_engine, "connect", self._on_connect)
        event.listen(self._engine.sync_engine, "checkout", self._on_checkout)

    def _on_connect(self, connection: Any, record: Any) -> None:
        record.info[_GENERATION] = self._generation
        record.info[_UNREPLICATED] = False

        def listen(_: object, message: Any) -> None:
            if message.server_source_function == "SyncRepWaitForLSN":
                record.info[_UNREPLICATED] = True

        connection.driver_connection.add_log_listener(listen)

    def _on_checkout(self, connection: Any, record: Any, _: object) -> None:
        if record.info[_GENERATION] != self._generation:
            connection.driver_connection.terminate()
            raise DisconnectionError

    async def write(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = await self._engine.connect()
        except _CONNECTION_ERRORS as error:
            raise CommitRejected(detail=f"no connection: {_describe_error(error)}") from error
        try:
            return await self._write(connection, work)
        finally:
            await connection.close()

    async def _write(self, connection: AsyncConnection, work: Callable[[Connection], T]) -> T:
        try:
            result = await connection.run_sync(work)
        except StoreError:
            # Closing the connection rolls back, or drops the connection if that fails.
            raise
        except _CONNECTION_ERRORS as error:
            # No COMMIT was sent, so the database server rolls back.
            await self._discard(connection, error)
            raise _rejection(error) from error
        try:
            await connection.commit()
        except _CONNECTION_ERRORS as error:
            await self._discard(connection, error)
            raise CommitUnknown(detail=_describe_error(error)) from error
        if (await connection.get_raw_connection()).info[_UNREPLICATED]:
            # The wait for the standby was cancelled. PostgreSQL then reports success, with a warning.
            await connection.invalidate()
            raise CommitUnknown(detail="the synchronous standby has not confirmed it")
        return result

    async def _discard(self, connection: AsyncConnection, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._generation += 1
            if not connection.invalidated:
                # An orderly close would wait for the same time-out again.
                raw = await connection.get_raw_connection()
                driver = raw.driver_connection
                assert driver is not None
                driver.terminate()
        await connection.invalidate()

    async def read(self, work: Callable[[Connection], T]) -> T:
        try:
            async with self._read_limit, self._engine.connect() as connection:
                return await connection.run_sync(work)
        except _CONNECTION_ERRORS as error:
            is_refused = _sqlstate(error).startswith(DATA_EXCEPTION)
            raise (ValueRefused if is_refused else ReadFailed)(detail=_describe_error(error)) from error

    async def search(self, work: Callable[[Connection], T]) -> T:
        try:
            async with self._search_limit, asyncio.timeout(SEARCH_S_MAX):
                return await self.read(work)
        except TimeoutError:
            raise ReadFailed(
                detail=f"it did not answer within {SEARCH_S_MAX:.0f} s; ask for less at a time"
            ) from None

    async def end_sessions(self, owners: Collection[str]) -> int:
        query = select(func.count(func.pg_terminate_backend(_pg_sessions.c.pid))).where(
            _pg_sessions.c.application_name.in_(sorted(map(_session_name, owners))),
            _pg_sessions.c.datname == func.current_database(),
        )
        ended: int = await self.read(lambda connection: connection.execute(query).scalar_one())
        return ended

    def connection_counts(self) -> ConnectionCounts:
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        return ConnectionCounts(pool.checkedout(), pool.checkedin(), self._connections_max)

    async def close(self) -> None:
        await self._engine.dispose()


_pg_sessions = table("pg_stat_activity", column("pid"), column("application_name"), column("datname"))


def _session_name(owner: str) -> str:
    """PostgreSQL truncates longer names. The end of an owner's id is its unique part."""
    return f"liveness {owner}".rstrip() if len(owner) <= 54 else f"liveness {owner[-54:]}"


def _rejection(error: Exception) -> CommitRejected:
    """Why a transaction was certainly not committed."""
    is_full = _sqlstate(error) == DISK_FULL
    return (NoSpaceLeft if is_full else CommitRejected)(detail=_describe_error(error))


def _sqlstate(error: Exception) -> str:
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _describe_error(error: Exception) -> str:
    if isinstance(error, PoolTimeout):
        return f"all connections were busy for {STATEMENT_TIMEOUT_S:.0f} s; raise db_connections"
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {STATEMENT_TIMEOUT_S:.0f} s"
    return str(getattr(error, "orig", error))
