"""Looking at a PostgreSQL database without changing it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from statistics import median
from timeit import repeat
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from liveness.cli.finding import (
    COMMITS_MEASURED,
    Finding,
    commit_latency,
    failed,
    ok,
    schema_revision,
    shard_count,
    warning,
)
from liveness.settings import without_password
from liveness.store.errors import StoreError
from liveness.store.postgres import PostgresDatabase


class Seen(NamedTuple):
    version: str
    standby: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    revision: str | None
    oldest_writer: str | None
    shards: str | None
    tables: int
    commit_s: float | None
    """Median; None on a standby, which cannot commit."""


def examine(url: str, shards: int) -> Iterator[Finding]:
    shown = without_password(url)
    try:
        seen = asyncio.run(_look(url))
    # asyncpg answers TypeError or ValueError to options in the URL that it does not know.
    except (StoreError, SQLAlchemyError, OSError, TypeError, ValueError) as error:
        yield failed(
            "database", f"{shown} cannot be used: {error}", "Check the URL, the server and the rights."
        )
        return
    yield ok("database", f"{shown}, PostgreSQL {seen.version}")
    yield from _durability(seen)
    if seen.revision is None and seen.tables:
        yield warning(
            "tables",
            "only those of another program",
            "The server would add its own; better give it a database.",
        )
    else:
        yield schema_revision(seen.revision, seen.oldest_writer)
    yield from shard_count(seen.shards, shards)
    if seen.commit_s is not None:
        yield commit_latency(seen.commit_s, "a temporary table")


def _durability(seen: Seen) -> Iterator[Finding]:
    if seen.standby:
        yield failed("role", "a standby, which takes no writes", "Name the primary in --db.")
    if seen.synchronous_commit in ("on", "remote_apply"):
        yield ok("synchronous_commit", seen.synchronous_commit)
    else:
        yield failed(
            "synchronous_commit",
            seen.synchronous_commit,
            "Acknowledged heartbeats could be lost; remove what overrides it, such as a pooler.",
        )
    if seen.fsync == "on":
        yield ok("fsync", seen.fsync)
    else:
        yield failed(
            "fsync", seen.fsync, "A power loss would destroy the database; set fsync = on in postgresql.conf."
        )
    if seen.full_page_writes == "on":
        yield ok("full_page_writes", seen.full_page_writes)
    else:
        yield warning(
            "full_page_writes",
            seen.full_page_writes,
            "Safe only on a file system that never tears a page; else set full_page_writes = on.",
        )


async def _look(url: str) -> Seen:
    database = PostgresDatabase(url)
    try:
        return await database.read(_see)
    finally:
        await database.close()


def _see(connection: Connection) -> Seen:
    def ask(query: str) -> str | None:
        value = connection.exec_driver_sql(query).scalar()
        return None if value is None else str(value)

    def exists(table: str) -> bool:
        return ask(f"SELECT to_regclass('{table}')") is not None

    standby = ask("SELECT pg_is_in_recovery()") == "True"
    seen = Seen(
        version=ask("SHOW server_version") or "",
        standby=standby,
        synchronous_commit=ask("SHOW synchronous_commit") or "",
        fsync=ask("SHOW fsync") or "",
        full_page_writes=ask("SHOW full_page_writes") or "",
        revision=ask("SELECT version_num FROM alembic_version") if exists("alembic_version") else None,
        oldest_writer=ask("SELECT value FROM meta WHERE name = 'oldest_writer'") if exists("meta") else None,
        shards=ask("SELECT value FROM meta WHERE name = 'shard_count'") if exists("meta") else None,
        tables=int(ask("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") or 0),
        commit_s=None,
    )
    connection.rollback()
    return seen if standby else seen._replace(commit_s=_median_commit_s(connection))


def _median_commit_s(connection: Connection) -> float:
    def commit() -> None:
        # Creating the table is what writes to the server's log, and so what makes the commit wait for the disk:
        # rows of a temporary table alone are not logged.
        connection.exec_driver_sql("CREATE TEMPORARY TABLE liveness_doctor (n integer) ON COMMIT DROP")
        connection.commit()

    return median(repeat(commit, number=1, repeat=COMMITS_MEASURED))
