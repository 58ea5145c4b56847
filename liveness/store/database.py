"""The interface to a database: it runs a function with a connection, in a transaction, off the event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")

SEARCH_S_MAX = 5.0


class ConnectionCounts(NamedTuple):
    """Connections to a database server."""

    in_use: int = 0
    idle: int = 0
    max: int = 0


class Database(Protocol):
    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a durable transaction. Raises `CommitRejected`, `CommitUnknown` or `StoreBroken`.

        A `StoreError` raised by `work` rolls back and propagates.
        """

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a read transaction."""

    async def search(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a read transaction that a client asked for. It may take long, so the server's own reads do not wait for
        it, and it ends after `SEARCH_S_MAX`, or when its caller has gone. Raises `ReadFailed`."""

    async def end_sessions(self, owners: Collection[str]) -> int:
        """End the sessions of these owners, which rolls back their open transactions. Return the number of sessions."""

    def connection_counts(self) -> ConnectionCounts: ...

    async def close(self) -> None: ...
