"""Notices that a PostgreSQL database was restored or copied, although nobody said so.

A restored database goes back in time and its clients do not (`liveness.store.timeline`), so a server must not serve it
before `liveness restore --already-restored` has begun a new timeline. An operator may forget that. So `meta` holds the
identity of the place where its rows were written:

- the identifier of the database cluster: another one after a restore to another cluster, and after `pg_upgrade`;
- the oid of the database: another one if it was dropped and created again, or copied with CREATE DATABASE … TEMPLATE;
- the transaction that wrote this very row. PostgreSQL keeps the writer of each row in `xmin`, through VACUUM FULL and
  freezing as well, but whatever writes the row anew, such as `pg_restore`, COPY or logical replication, leaves its own
  transaction there.

A physical restore to a point in time keeps all three, and raises the timeline of PostgreSQL's WAL. A promoted standby raises
it, too, and a synchronous one has lost nothing; so that is a warning and no refusal.

SQLite has no such check: `liveness restore` is the only way to restore it, beside copying files.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, text
from sqlalchemy.exc import DBAPIError

from liveness.store.errors import DatabaseReplaced
from liveness.store.schema import meta

IDENTITY = "database_identity"
WAL_TIMELINE = "wal_timeline"
_UNREADABLE = "-"

_XIDS = 2**32
"""`xmin` is 32 bits of the transaction's number."""


class DatabaseIdentity(NamedTuple):
    cluster: str
    """`_UNREADABLE` if this role may not read it; then it is not compared."""
    database: str
    written_by: str
    """The transaction that wrote the row: in a stored identity the one that the row names, else the one of `xmin`."""


def check_identity(connection: Connection) -> str:
    """Refuse a database that was restored or copied, and record the identity of a new one. Returns a warning, or ""."""
    difference = find_difference(connection)
    if difference is None:
        write_identity(connection)
        return ""
    if difference:
        raise DatabaseReplaced(how=difference)
    return _check_wal_timeline(connection)


def find_difference(connection: Connection) -> str | None:
    """In what this database differs from the one that was served, "" if in nothing, None if none is on record."""
    here = _read_identity_here(connection)
    if here is None:
        return None
    found = connection.execute(
        text("SELECT value, xmin::text AS xmin FROM meta WHERE name = :name"), {"name": IDENTITY}
    ).one_or_none()
    if found is None:
        return None
    return _describe_difference(
        DatabaseIdentity(*found.value.split("/")), here._replace(written_by=found.xmin)
    )


def write_identity(connection: Connection) -> None:
    """Record that this database is the one to serve from now on."""
    here = _read_identity_here(connection)
    if here is None:
        return
    connection.execute(delete(meta).where(meta.c.name.in_((IDENTITY, WAL_TIMELINE))))
    values = {IDENTITY: "/".join(here), WAL_TIMELINE: _read_wal_timeline(connection)}
    connection.execute(insert(meta), [{"name": name, "value": value} for name, value in values.items()])


def _describe_difference(stored: DatabaseIdentity, here: DatabaseIdentity) -> str:
    if _UNREADABLE not in (stored.cluster, here.cluster) and stored.cluster != here.cluster:
        return "it was written in another PostgreSQL cluster"
    if stored.database != here.database:
        return "it was written in another database of this PostgreSQL"
    if stored.written_by != here.written_by:
        return "its rows were written anew"
    return ""


def _read_identity_here(connection: Connection) -> DatabaseIdentity | None:
    """The identity that a row has which the current transaction writes. None on SQLite, and on databases that only speak
    PostgreSQL's protocol."""
    if connection.dialect.name != "postgresql":
        return None
    try:
        with connection.begin_nested():
            may_read = "has_function_privilege('pg_control_system()', 'execute')"
            cluster = (
                connection.exec_driver_sql("SELECT system_identifier FROM pg_control_system()").scalar()
                if connection.exec_driver_sql(f"SELECT {may_read}").scalar()
                else _UNREADABLE
            )
            query = "SELECT oid, txid_current() FROM pg_database WHERE datname = current_database()"
            oid, transaction = connection.exec_driver_sql(query).one()
    except DBAPIError:
        return None
    return DatabaseIdentity(str(cluster), str(oid), str(transaction % _XIDS))


def _check_wal_timeline(connection: Connection) -> str:
    now = _read_wal_timeline(connection)
    stored = connection.execute(
        text("SELECT value FROM meta WHERE name = :name"), {"name": WAL_TIMELINE}
    ).scalar()
    if now == stored:
        return ""
    connection.execute(
        text("UPDATE meta SET value = :value WHERE name = :name"), {"value": now, "name": WAL_TIMELINE}
    )
    return (
        "PostgreSQL was promoted from a standby or restored to a point in time since a node last started: if commits were"
        " lost, as by an asynchronous standby, stop all nodes and run `liveness restore --already-restored`"
    )


def _read_wal_timeline(connection: Connection) -> str:
    """The first eight digits of a WAL file's name."""
    name = connection.exec_driver_sql("SELECT pg_walfile_name(pg_current_wal_lsn())").scalar()
    return str(name)[:8]
