"""A database as the store's SQL sees it: run this with a connection, in a transaction, somewhere else than here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")


class Database(Protocol):
    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a durable transaction. Raises `CommitRejected`, `CommitUnknown` or `StoreBroken`; a `StoreError`
        raised by `work` rolls back and passes through."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run in a read transaction over what is committed."""

    async def close(self) -> None: ...
