"""A database as the store's SQL sees it: run this with a connection, in a transaction, somewhere else than here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")


class Database(Protocol):
    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run in a durable transaction. Raises `CommitRejected`, `CommitUnknown` or `StoreBroken`; a `StoreError`
        raised by `work` rolls back and passes through."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run in a read transaction over what is committed."""

    async def end_sessions(self, owners: Collection[str]) -> int:
        """Whatever these owners have begun is undone, unless it is committed just now. Returns how many sessions they
        had."""

    async def close(self) -> None: ...
