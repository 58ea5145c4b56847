"""PostgreSQL through asyncpg. Commits are synchronous whatever the server's default says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from liveness.store.errors import CommitRejected, CommitUnknown, ReadFailed, StoreError
from liveness.store.postgres_hosts import Hosts

T = TypeVar("T")

CONNECTIONS_MAX = 8
"""Unless set otherwise. The group commit needs one; reads, the registry and maintenance share the others."""
CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 10.0
"""A statement that takes longer has not failed, but nobody waits for it any more: whether a commit took place is then
unknown, and its shards are read again."""
IDLE_MS_MAX = 10_000
"""Unless set otherwise. So long a process may leave the server without a word in the middle of a transaction."""


class PostgresDatabase:
    def __init__(
        self, url: str, connections_max: int = CONNECTIONS_MAX, idle_ms_max: int = IDLE_MS_MAX
    ) -> None:
        """`idle_ms_max`: a transaction whose process says nothing for so long is undone. It would hold on to its rows,
        and a process that stands still, or that the network has cut off, would keep others from taking its shards."""
        kept = max(1, connections_max // 2)
        self._engine = create_async_engine(
            make_url(url).set(drivername="postgresql+asyncpg"),
            pool_size=kept,
            max_overflow=connections_max - kept,
            pool_pre_ping=False,
            connect_args={
                "async_creator_fn": Hosts().connect,
                "timeout": CONNECT_SECONDS_MAX,
                "command_timeout": ANSWER_SECONDS_MAX,
                "server_settings": {
                    "synchronous_commit": "on",
                    "application_name": "liveness",
                    "idle_in_transaction_session_timeout": str(idle_ms_max),
                },
                "prepared_statement_cache_size": 512,
            },
        )

    async def write(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = await self._engine.connect()
        except (DBAPIError, OSError, TimeoutError) as error:
            raise CommitRejected(detail=f"no connection: {getattr(error, 'orig', error)}") from error
        try:
            return await self._write(connection, work)
        finally:
            await connection.close()

    async def _write(self, connection: AsyncConnection, work: Callable[[Connection], T]) -> T:
        try:
            result = await connection.run_sync(work)
        except StoreError:
            await connection.rollback()
            raise
        except (DBAPIError, OSError) as error:
            # Without a COMMIT sent, the server forgets it all.
            await connection.invalidate()
            raise CommitRejected(detail=str(getattr(error, "orig", error))) from error
        try:
            await connection.commit()
        except (DBAPIError, OSError) as error:
            await connection.invalidate()
            raise CommitUnknown(detail=str(getattr(error, "orig", error))) from error
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        try:
            async with self._engine.connect() as connection:
                return await connection.run_sync(work)
        except (DBAPIError, OSError, TimeoutError) as error:
            raise ReadFailed(detail=str(getattr(error, "orig", error))) from error

    async def close(self) -> None:
        await self._engine.dispose()
