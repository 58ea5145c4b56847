"""Makes a zombie's write fail at the data: the database remembers the newest token that wrote, and refuses older ones.

A worker that was frozen may write long after its work moved on, before it can notice anything. Only whoever stores the
data can refuse that write. `FencingGuard` keeps one row per resource with the newest token seen; `check` compares and
records inside the caller's own transaction, and what it wrote stays locked until that transaction ends:

    guard = FencingGuard(Base.metadata)
    with guard.writing(session, "photo-17", task.fencing_token):
        session.add(Thumbnail(...))

The errors:

FencingError
├── StaleToken         a newer holder has written; this one must stop
├── SnapshotTooOld     the transaction cannot see what it competes with; roll back and run it again
└── NotInTransaction   the connection commits each statement by itself, so that a check protects nothing
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    Update,
    and_,
    func,
    insert,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import CreateTable

from liveness.templated_error import TemplatedError

AnySession: TypeAlias = Session | scoped_session[Any] | Connection
AnyAsyncSession: TypeAlias = AsyncSession | AsyncConnection

# Some databases index no text of unbounded length.
_NAME = Text().with_variant(String(255), "mysql", "mariadb", "mssql", "oracle")

# The second time decides, because whoever came between has committed by then. If it does not, then this transaction
# reads from a snapshot, or somebody deletes rows at this very moment.
_ATTEMPTS = 2


class Token(Protocol):
    """What a holder shows when it writes, such as `FencingToken` of the SDK.

    Attempts rise each time the work is handed out, and epochs each time one worker's lease begins anew.
    """

    @property
    def attempt(self) -> int: ...

    @property
    def lease_epoch(self) -> int: ...


@dataclass(frozen=True, slots=True, order=True)
class SeenToken:
    """A token as the guard saw it, in the order in which tokens replace each other."""

    attempt: int
    lease_epoch: int
    holder: str = field(default="", compare=False)
    """Who showed it, as told: for people, never compared."""

    def __str__(self) -> str:
        who = f" ({self.holder})" if self.holder else ""
        return f"attempt {self.attempt}, lease epoch {self.lease_epoch}{who}"


class FencingError(TemplatedError, kw_only=False):
    template = "The write to {resource} was not allowed."

    resource: str


class StaleToken(FencingError, kw_only=False):
    template = "{resource} was written with {newest}, so {given} comes too late: its holder was replaced and must stop."

    given: SeenToken
    newest: SeenToken


class SnapshotTooOld(FencingError):
    template = "This transaction cannot see the token that another recorded for {resource}; roll back and run it again."


class NotInTransaction(FencingError):
    template = "The check of {resource} was committed by itself and protects no write; use a connection without AUTOCOMMIT."


def guarded_update(table: Table, token: Token) -> Update:
    """For rows that carry their own token, in columns `attempt` and `lease_epoch` that are not null.

    Add `.where(...)` and `.values(...)`. A statement that touches no row was refused, or there is no such row.
    """
    attempt, epoch = table.c.attempt, table.c.lease_epoch
    return (
        update(table)
        .where(or_(attempt < token.attempt, and_(attempt == token.attempt, epoch <= token.lease_epoch)))
        .values(attempt=token.attempt, lease_epoch=token.lease_epoch)
    )


class FencingGuard:
    """The newest token that wrote to each resource, in a table beside the data that it protects.

    Give it the `metadata` of your own tables and it is created and migrated with them; otherwise call `create`.
    """

    def __init__(self, metadata: MetaData | None = None, table_name: str = "liveness_fencing_tokens") -> None:
        self.table = Table(
            table_name,
            MetaData() if metadata is None else metadata,
            Column("resource", _NAME, primary_key=True),
            Column("attempt", BigInteger, nullable=False),
            Column("lease_epoch", BigInteger, nullable=False),
            # For people and for clearing out; the guard never judges by these.
            Column("holder", Text),
            Column("seen_at", DateTime(timezone=True), nullable=False),
        )

    def create(self, at: Engine | Connection) -> None:
        """Create the table unless it is there. Any number of processes may do so at once."""
        if isinstance(at, Engine):
            with at.begin() as connection:
                self.create(connection)
            return
        try:
            with at.begin_nested():
                at.execute(CreateTable(self.table, if_not_exists=True))
        except DBAPIError:
            # On PostgreSQL, two who create it at the same moment are not both told that it exists.
            if not inspect(at).has_table(self.table.name, self.table.schema):
                raise

    def check(self, session: AnySession, resource: str, token: Token, holder: str = "") -> None:
        """Record the token as the newest of the resource, or raise `StaleToken` if a newer one is recorded.

        Must be in the transaction of the write that it protects, best as its first statement: what is read after it
        contains everything that earlier holders wrote. Until that transaction ends, every other check of the resource
        waits.
        """
        connection = self._connection(session)
        given = SeenToken(token.attempt, token.lease_epoch, holder)
        conflict: IntegrityError | None = None
        for _ in range(_ATTEMPTS):
            if self._advance(connection, resource, given):
                return
            newest = self.newest(connection, resource)
            if newest is not None and newest > given:
                raise StaleToken(resource, given, newest)
            if newest is not None:
                continue  # recorded since we looked, and not newer
            try:
                with connection.begin_nested():
                    self._insert(connection, resource, given)
            except IntegrityError as error:
                conflict = error
            else:
                return
        raise SnapshotTooOld(resource) from conflict

    async def check_async(
        self, session: AnyAsyncSession, resource: str, token: Token, holder: str = ""
    ) -> None:
        """`check` for sessions and connections of asyncio."""
        await session.run_sync(self.check, resource, token, holder)

    @contextmanager
    def writing(self, session: AnySession, resource: str, token: Token, holder: str = "") -> Iterator[None]:
        """A transaction that begins with `check` and is committed at the end, or rolled back if anything is raised."""
        with session.begin():
            self.check(session, resource, token, holder)
            yield

    @asynccontextmanager
    async def writing_async(
        self, session: AnyAsyncSession, resource: str, token: Token, holder: str = ""
    ) -> AsyncIterator[None]:
        """`writing` for sessions and connections of asyncio."""
        async with session.begin():
            await self.check_async(session, resource, token, holder)
            yield

    def newest(self, session: AnySession, resource: str) -> SeenToken | None:
        """What is recorded, without recording or locking anything."""
        columns = self.table.c
        statement = select(columns.attempt, columns.lease_epoch, columns.holder)
        row = self._connection(session).execute(statement.where(columns.resource == resource)).one_or_none()
        return None if row is None else SeenToken(row.attempt, row.lease_epoch, row.holder or "")

    def _connection(self, session: AnySession) -> Connection:
        if isinstance(session, Connection):
            return session
        # A savepoint of the session itself would first flush what the caller has not asked to write yet.
        return session.connection(bind_arguments={"clause": self.table})

    def _advance(self, connection: Connection, resource: str, given: SeenToken) -> bool:
        """Writes even if the token is the same: that is what locks the row, on every database."""
        statement = guarded_update(self.table, given).where(self.table.c.resource == resource)
        done = connection.execute(statement.values(holder=given.holder, seen_at=func.now()))
        if _is_autocommit(connection):
            raise NotInTransaction(resource)
        return done.rowcount == 1

    def _insert(self, connection: Connection, resource: str, given: SeenToken) -> None:
        token = {"attempt": given.attempt, "lease_epoch": given.lease_epoch}
        connection.execute(
            insert(self.table).values(resource=resource, **token, holder=given.holder, seen_at=func.now())
        )


def _is_autocommit(connection: Connection) -> bool:
    """Asked after a statement that writes, because SQLite's driver begins a transaction only there."""
    in_transaction = getattr(connection.connection.driver_connection, "in_transaction", None)
    if isinstance(in_transaction, bool):
        return not in_transaction
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # since SQLAlchemy 2.0.43
    try:
        return detect is not None and bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False
