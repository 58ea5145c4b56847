"""Makes writes of replaced workers fail in the database: it records the newest fencing token and refuses older ones.

A worker that was frozen may write long after its work went to another worker, before it can notice that. Only the database
that stores the data can refuse such a write. `FencingGuard` keeps one row per resource with the newest token seen; `check`
compares and records the token in the caller's own transaction, and the row stays locked until that transaction ends:

    guard = FencingGuard(Base.metadata)
    with guard.writing(session, "photo-17", task.fencing_token):
        session.add(Thumbnail(...))

The errors:

FencingError
├── StaleToken         a newer holder has written; the caller must stop
├── SnapshotTooOld     the transaction cannot see a token recorded by another; roll back and run it again
└── NotInTransaction   the connection commits each statement by itself, so that the check protects nothing
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

# The second attempt decides, because a competing transaction has committed by then. If it does not, this transaction reads
# from an old snapshot, or another one deletes rows at the same time.
_ATTEMPTS = 2


class Token(Protocol):
    """A fencing token, such as `FencingToken` of the SDK.

    The attempt increases each time the work is handed out, and the epoch each time a worker gets a new lease.
    """

    @property
    def attempt(self) -> int: ...

    @property
    def lease_epoch(self) -> int: ...


@dataclass(frozen=True, slots=True, order=True)
class SeenToken:
    """A recorded token. A later token is greater."""

    attempt: int
    lease_epoch: int
    holder: str = field(default="", compare=False)
    """The name that the holder gave itself; for people, never compared."""

    def __str__(self) -> str:
        holder = f" ({self.holder})" if self.holder else ""
        return f"attempt {self.attempt}, lease epoch {self.lease_epoch}{holder}"


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
    """An UPDATE for rows that hold their own token, in the columns `attempt` and `lease_epoch`, which are not null.

    Add `.where(...)` and `.values(...)`. If the statement changes no row, the token is too old or there is no such row.
    """
    attempt, epoch = table.c.attempt, table.c.lease_epoch
    return (
        update(table)
        .where(or_(attempt < token.attempt, and_(attempt == token.attempt, epoch <= token.lease_epoch)))
        .values(attempt=token.attempt, lease_epoch=token.lease_epoch)
    )


class FencingGuard:
    """Keeps the newest token of each resource, in a table beside the data that it protects.

    With the `metadata` of your own tables, the guard's table is created and migrated with them; otherwise call `create`.
    """

    def __init__(self, metadata: MetaData | None = None, table_name: str = "liveness_fencing_tokens") -> None:
        self.table = Table(
            table_name,
            MetaData() if metadata is None else metadata,
            Column("resource", _NAME, primary_key=True),
            Column("attempt", BigInteger, nullable=False),
            Column("lease_epoch", BigInteger, nullable=False),
            # For people and for deleting old rows; the guard does not read these.
            Column("holder", Text),
            Column("seen_at", DateTime(timezone=True), nullable=False),
        )

    def create(self, at: Engine | Connection) -> None:
        """Create the table if it does not exist. Several processes may do so at once."""
        if isinstance(at, Engine):
            with at.begin() as connection:
                self.create(connection)
            return
        try:
            with at.begin_nested():
                at.execute(CreateTable(self.table, if_not_exists=True))
        except DBAPIError:
            # On PostgreSQL, IF NOT EXISTS fails if another transaction creates the table at the same moment.
            if not inspect(at).has_table(self.table.name, self.table.schema):
                raise

    def check(self, session: AnySession, resource: str, token: Token, holder: str = "") -> None:
        """Record the token as the newest of the resource, or raise `StaleToken` if a newer one is recorded.

        Call it in the transaction of the write that it protects, best as its first statement: later reads then see everything
        that earlier holders wrote. Other checks of the resource wait until that transaction ends.
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
                continue  # recorded by another transaction meanwhile, and not newer
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
        """Run the block in a transaction that starts with `check`. It is committed at the end, or rolled back on an exception."""
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
        """The recorded token, without recording or locking anything."""
        columns = self.table.c
        statement = select(columns.attempt, columns.lease_epoch, columns.holder)
        row = self._connection(session).execute(statement.where(columns.resource == resource)).one_or_none()
        return None if row is None else SeenToken(row.attempt, row.lease_epoch, row.holder or "")

    def _connection(self, session: AnySession) -> Connection:
        if isinstance(session, Connection):
            return session
        # A savepoint of the session itself would flush pending changes that the caller has not asked to write yet.
        return session.connection(bind_arguments={"clause": self.table})

    def _advance(self, connection: Connection, resource: str, given: SeenToken) -> bool:
        """Record the token if no newer one is recorded. Writing an equal token locks the row, on every database."""
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
    """Called after a statement that writes, because SQLite's driver starts a transaction only then."""
    in_transaction = getattr(connection.connection.driver_connection, "in_transaction", None)
    if isinstance(in_transaction, bool):
        return not in_transaction
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # since SQLAlchemy 2.0.43
    try:
        return detect is not None and bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False
