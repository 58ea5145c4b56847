"""Install pgai's worker tracking in the user's database, remove it, and tell what is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import asyncpg

from liveness.doors.pgai.connection import PgaiError, Refused, connect, describe
from liveness.doors.pgai.schema import (
    CREATE_VIEW,
    FOLLOWER_TABLE,
    FUNCTIONS,
    MARKER,
    PROCESS_TABLE,
    PROGRESS_TABLE,
    SCHEMA,
    STATE_TABLE,
    VIEW,
    tables,
)

LOCK_KEY = 0x1BE5_70A1
"""Of the advisory lock that makes installations wait for each other."""
COMMAND_TIMEOUT_S = 60.0
RECENT_SECONDS_MIN = 60
_OUR_TABLES = (STATE_TABLE, FOLLOWER_TABLE)
_STOCK_OBJECTS = frozenset({PROCESS_TABLE, PROGRESS_TABLE, *(function.name for function in FUNCTIONS)})


class Kind(StrEnum):
    NONE = "none"
    LIVENESS = "liveness"
    STOCK = "stock"
    """Somebody else's and complete: followed without writing to it."""
    INCOMPLETE = "incomplete"
    """Somebody else's, and not enough for workers to heartbeat."""
    CONFLICT = "conflict"
    """Somebody else's beside ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    kind: Kind
    foreign: tuple[str, ...] = ()
    """Objects under our names that are not ours."""
    missing: tuple[str, ...] = ()
    workers: int = 0
    recent_workers: int = 0
    """Those whose last heartbeat is not older than three of their intervals, and at least a minute."""
    followed_seconds_ago: float | None = None
    """None: no follower has written here."""
    grants: tuple[str, ...] = ()
    """Roles that may call the functions."""


@dataclass(frozen=True, slots=True)
class _Objects:
    ours: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    has_schema: bool = False
    schema_is_ours: bool = False
    has_vectorizers: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(_STOCK_OBJECTS - self.names))

    @property
    def kind(self) -> Kind:
        if not self.names & _STOCK_OBJECTS:
            return Kind.NONE
        if not self.foreign:
            return Kind.LIVENESS
        if self.ours & _STOCK_OBJECTS:
            return Kind.CONFLICT
        return Kind.INCOMPLETE if self.missing else Kind.STOCK


class UnknownRole(PgaiError):
    template = "There is no role {role} in this database; create it, or name another one."

    role: str


class ForeignObjects(PgaiError):
    template = (
        "The database has {foreign} from another installation, but lacks {missing}; complete that installation (`pgai install`) "
        "or remove it, then try again."
    )

    foreign: str
    missing: str


class Conflict(PgaiError):
    template = "Beside what liveness has installed there are {foreign}, so that calls of workers can be ambiguous; drop them, then try again."

    foreign: str


class NotOurs(PgaiError):
    template = (
        "liveness has installed nothing in this database: {foreign} belong to another installation and stay."
    )

    foreign: str


class RecentWorkers(PgaiError):
    template = (
        "{count} of the workers sent heartbeats within three of their intervals; stop them first, or remove their rows and "
        "functions all the same with --force."
    )

    count: int


async def install(dsn: str, grant: Sequence[str] = (), grant_follower: Sequence[str] = ()) -> Status:
    """Create what is missing, in one transaction. A stock installation is left as it is. `grant`: roles of workers.
    `grant_follower`: roles of servers that follow the tables. Raises PgaiError."""
    async with _transaction(dsn) as connection:
        for role in (*grant, *grant_follower):
            if not await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", role):
                raise UnknownRole(role=role)
        found = await _find_objects(connection)
        if found.kind is Kind.INCOMPLETE:
            raise ForeignObjects(foreign=", ".join(found.foreign), missing=", ".join(found.missing))
        if found.kind is Kind.CONFLICT:
            raise Conflict(foreign=", ".join(found.foreign))
        if found.kind is not Kind.STOCK:
            await _create(connection, found)
            for role in grant:
                await _grant_to_worker(connection, role)
            for role in grant_follower:
                await _grant_to_follower(connection, role)
        return await _status(connection)


async def uninstall(dsn: str, *, force: bool = False) -> tuple[str, ...]:
    """Remove what `install` created, and return its names. Raises PgaiError."""
    async with _transaction(dsn) as connection:
        found = await _find_objects(connection)
        if not found.ours:
            if found.foreign:
                raise NotOurs(foreign=", ".join(found.foreign))
            return ()
        if PROCESS_TABLE in found.ours and not force:
            recent = (await _count_workers(connection))[1]
            if recent:
                raise RecentWorkers(count=recent)
        if VIEW in found.ours:
            await connection.execute(f"DROP VIEW ai.{VIEW}")
        for function in FUNCTIONS:
            if function.name in found.ours:
                await connection.execute(f"DROP FUNCTION ai.{function.name}({function.arguments})")
        for table in tables(has_vectorizers=False):
            if table.name in found.ours:
                await connection.execute(f"DROP TABLE ai.{table.name}")
        if found.schema_is_ours and not await connection.fetchval(_SCHEMA_IN_USE):
            await connection.execute(f"DROP SCHEMA {SCHEMA}")
        return tuple(sorted(found.ours))


async def read_status(dsn: str) -> Status:
    """Raises PgaiError."""
    async with _transaction(dsn, readonly=True) as connection:
        return await _status(connection)


@asynccontextmanager
async def _transaction(dsn: str, *, readonly: bool = False) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(dsn, command_timeout_s=COMMAND_TIMEOUT_S)
    try:
        async with connection.transaction(readonly=readonly):
            if not readonly:
                await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK_KEY)
            yield connection
    except TimeoutError:
        raise Refused(why=f"it did not answer within {COMMAND_TIMEOUT_S:.0f} s") from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Refused(why=describe(error)) from error
    finally:
        connection.terminate()


_FIND_OBJECTS = """
SELECT c.relname::text AS name, c.relname::text AS shown, obj_description(c.oid, 'pg_class') AS comment
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'ai' AND c.relname = ANY ($1) AND c.relkind IN ('r', 'v', 'p', 'm', 'f')
UNION ALL
SELECT p.proname::text, p.proname || '(' || oidvectortypes(p.proargtypes) || ')', obj_description(p.oid, 'pg_proc')
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'ai' AND p.proname = ANY ($2)
 ORDER BY 2"""
_SCHEMA_IN_USE = """
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('ai'))
    OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('ai'))
    OR EXISTS (SELECT FROM pg_type WHERE typnamespace = to_regnamespace('ai'))"""


async def _find_objects(connection: asyncpg.Connection) -> _Objects:
    rows = await connection.fetch(
        _FIND_OBJECTS,
        [PROCESS_TABLE, PROGRESS_TABLE, *_OUR_TABLES, VIEW],
        [function.name for function in FUNCTIONS],
    )
    schema = await connection.fetchrow(
        "SELECT obj_description(oid, 'pg_namespace') AS comment FROM pg_namespace WHERE nspname = 'ai'"
    )
    return _Objects(
        ours=frozenset(row["name"] for row in rows if row["comment"] == MARKER),
        foreign=tuple(f"ai.{row['shown']}" for row in rows if row["comment"] != MARKER),
        names=frozenset(row["name"] for row in rows),
        has_schema=schema is not None,
        schema_is_ours=schema is not None and schema["comment"] == MARKER,
        has_vectorizers=await connection.fetchval("SELECT to_regclass('ai.vectorizer') IS NOT NULL"),
    )


async def _create(connection: asyncpg.Connection, found: _Objects) -> None:
    if not found.has_schema:
        await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await _mark(connection, f"SCHEMA {SCHEMA}")
    for table in tables(has_vectorizers=found.has_vectorizers):
        if table.name not in found.names:
            await connection.execute(table.create)
            await _mark(connection, f"TABLE ai.{table.name}")
            await connection.execute(f"REVOKE ALL ON TABLE ai.{table.name} FROM PUBLIC")
    for function in FUNCTIONS:
        signature = f"FUNCTION ai.{function.name}({function.arguments})"
        await connection.execute(function.create)
        await _mark(connection, signature)
        await connection.execute(f"REVOKE ALL ON {signature} FROM PUBLIC")
    if VIEW not in found.names:
        await connection.execute(CREATE_VIEW)
        await _mark(connection, f"VIEW ai.{VIEW}")
        await connection.execute(f"REVOKE ALL ON TABLE ai.{VIEW} FROM PUBLIC")


async def _mark(connection: asyncpg.Connection, what: str) -> None:
    await connection.execute(f"COMMENT ON {what} IS '{MARKER}'")


async def _grant_to_worker(connection: asyncpg.Connection, role: str) -> None:
    quoted = await _quote(connection, role)
    await connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {quoted}")
    for function in FUNCTIONS:
        await connection.execute(
            f"GRANT EXECUTE ON FUNCTION ai.{function.name}({function.arguments}) TO {quoted}"
        )
    for table in tables(has_vectorizers=False):
        if table.worker_rights:
            await connection.execute(f"GRANT {table.worker_rights} ON TABLE ai.{table.name} TO {quoted}")


async def _grant_to_follower(connection: asyncpg.Connection, role: str) -> None:
    quoted = await _quote(connection, role)
    await connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {quoted}")
    await connection.execute(f"GRANT SELECT ON TABLE ai.{VIEW} TO {quoted}")
    for table in tables(has_vectorizers=False):
        await connection.execute(f"GRANT {table.follower_rights} ON TABLE ai.{table.name} TO {quoted}")


async def _quote(connection: asyncpg.Connection, role: str) -> str:
    return str(await connection.fetchval("SELECT quote_ident($1)", role))


async def _status(connection: asyncpg.Connection) -> Status:
    found = await _find_objects(connection)
    workers = recent = 0
    followed = None
    grants: list[str] = []
    if PROCESS_TABLE in found.names:
        workers, recent = await _count_workers(connection)
    if FOLLOWER_TABLE in found.ours:
        followed = await connection.fetchval(
            f"SELECT extract(epoch FROM clock_timestamp() - followed_at)::float8 FROM ai.{FOLLOWER_TABLE}"
        )
    if FUNCTIONS[1].name in found.ours:
        grants = [row["role"] for row in await connection.fetch(_GRANTS, f"ai.{FUNCTIONS[1].name}")]
    return Status(
        kind=found.kind,
        foreign=found.foreign,
        missing=found.missing if found.kind is Kind.INCOMPLETE else (),
        workers=workers,
        recent_workers=recent,
        followed_seconds_ago=followed,
        grants=tuple(grants),
    )


_GRANTS = """
SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
  FROM pg_proc p, aclexplode(p.proacl) a
 WHERE p.oid = to_regproc($1) AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
 ORDER BY 1"""


async def _count_workers(connection: asyncpg.Connection) -> tuple[int, int]:
    row = await connection.fetchrow(
        f"""
        SELECT count(*) AS all_workers,
               count(*) FILTER (
                   WHERE extract(epoch FROM clock_timestamp()) - extract(epoch FROM last_heartbeat)
                       <= greatest(3 * extract(epoch FROM expected_heartbeat_interval), {RECENT_SECONDS_MIN})
               ) AS recent
          FROM ai.{PROCESS_TABLE}"""
    )
    assert row is not None
    return row["all_workers"], row["recent"]
