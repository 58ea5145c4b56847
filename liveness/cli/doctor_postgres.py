"""Check a PostgreSQL database without changing it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from statistics import median
from timeit import repeat
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from liveness.cli.doctor_checks import (
    COMMITS_MEASURED,
    CheckResult,
    commit_latency,
    failed,
    growth,
    ok,
    schema_revision,
    shard_count,
    warning,
)
from liveness.clock import SystemClock
from liveness.config.settings import without_password
from liveness.store.database_identity import find_difference
from liveness.store.errors import StoreError
from liveness.store.postgres import PostgresDatabase
from liveness.store.size import Storage, read_storage


class DatabaseFacts(NamedTuple):
    version: str
    is_standby: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    revision: str | None
    oldest_writer: str | None
    shards: str | None
    tables: int
    replaced: str | None
    """In what the database differs from the one that was served; None if none was."""
    commit_s: float | None
    """Median; None on a standby, which cannot commit."""
    storage: Storage | None = None
    """None if the tables do not record their size yet."""


def run_checks(url: str, shards: int) -> Iterator[CheckResult]:
    redacted_url = without_password(url)
    try:
        facts = asyncio.run(_inspect(url))
    # asyncpg raises TypeError or ValueError for options in the URL that it does not know.
    except (StoreError, SQLAlchemyError, OSError, TypeError, ValueError) as error:
        yield failed(
            "database", f"{redacted_url} cannot be used: {error}", "Check the URL, the server and the rights."
        )
        return
    yield ok("database", f"{redacted_url}, PostgreSQL {facts.version}")
    yield from _durability(facts)
    if facts.revision is None and facts.tables:
        yield warning(
            "tables",
            "only those of another program",
            "The server would add its own; give it a database of its own instead.",
        )
    else:
        yield schema_revision(facts.revision, facts.oldest_writer)
    yield from shard_count(facts.shards, shards)
    if facts.replaced is not None:
        yield _identity(facts.replaced)
    if facts.storage is not None:
        yield growth(facts.storage)
    if facts.commit_s is not None:
        yield commit_latency(facts.commit_s, "a temporary table")


def _identity(replaced: str) -> CheckResult:
    if not replaced:
        return ok("identity", "the database that was served last")
    return failed(
        "identity",
        f"restored or copied: {replaced}",
        "Run `liveness restore --already-restored`, or `--moved` if no commit is missing.",
    )


def _durability(facts: DatabaseFacts) -> Iterator[CheckResult]:
    if facts.is_standby:
        yield failed("role", "a standby, which takes no writes", "Name the primary in --db.")
    if facts.synchronous_commit in ("on", "remote_apply"):
        yield ok("synchronous_commit", facts.synchronous_commit)
    else:
        yield failed(
            "synchronous_commit",
            facts.synchronous_commit,
            "Acknowledged heartbeats could be lost; remove what overrides it, such as a pooler.",
        )
    if facts.fsync == "on":
        yield ok("fsync", facts.fsync)
    else:
        yield failed(
            "fsync",
            facts.fsync,
            "A power loss would destroy the database; set fsync = on in postgresql.conf.",
        )
    if facts.full_page_writes == "on":
        yield ok("full_page_writes", facts.full_page_writes)
    else:
        yield warning(
            "full_page_writes",
            facts.full_page_writes,
            "Safe only on a file system that never tears a page; else set full_page_writes = on.",
        )


async def _inspect(url: str) -> DatabaseFacts:
    database = PostgresDatabase(url)
    try:
        return await database.read(_read_facts)
    finally:
        await database.close()


def _read_facts(connection: Connection) -> DatabaseFacts:
    def query_text(query: str) -> str | None:
        value = connection.exec_driver_sql(query).scalar()
        return None if value is None else str(value)

    def exists(table: str) -> bool:
        return query_text(f"SELECT to_regclass('{table}')") is not None

    is_standby = query_text("SELECT pg_is_in_recovery()") == "True"
    facts = DatabaseFacts(
        version=query_text("SHOW server_version") or "",
        is_standby=is_standby,
        synchronous_commit=query_text("SHOW synchronous_commit") or "",
        fsync=query_text("SHOW fsync") or "",
        full_page_writes=query_text("SHOW full_page_writes") or "",
        revision=query_text("SELECT version_num FROM alembic_version") if exists("alembic_version") else None,
        oldest_writer=query_text("SELECT value FROM meta WHERE name = 'oldest_writer'")
        if exists("meta")
        else None,
        shards=query_text("SELECT value FROM meta WHERE name = 'shard_count'") if exists("meta") else None,
        tables=int(query_text("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") or 0),
        replaced=find_difference(connection) if exists("meta") and not is_standby else None,
        commit_s=None,
        storage=read_storage(connection, SystemClock().wall_ms()) if exists("sizes") else None,
    )
    connection.rollback()
    return facts if is_standby else facts._replace(commit_s=_median_commit_s(connection))


def _median_commit_s(connection: Connection) -> float:
    def commit() -> None:
        # Creating the table writes to the WAL, so the commit waits for the disk. Rows of a temporary table alone are not
        # logged.
        connection.exec_driver_sql("CREATE TEMPORARY TABLE liveness_doctor (n integer) ON COMMIT DROP")
        connection.commit()

    return median(repeat(commit, number=1, repeat=COMMITS_MEASURED))
