"""Migrate the tables to this version's schema, or refuse a database that is too far ahead of it.

During a rolling upgrade, nodes of two versions share a database that the newer one has migrated. A migration states in its
module the oldest revision whose code may still write to the tables:

    oldest_writer = "0003"      # optional; by default only code that knows this migration may write

The value is stored in `meta`. A version that does not know the tables' revision, but is itself at least that new, serves
without migrating.

A migration that excludes older code raises every shard's epoch in its own transaction: running nodes of the old version lose
their shards at once, and are refused when they try to take them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, text, update

from liveness.store.errors import WrittenByNewerVersion
from liveness.store.schema import meta, shards

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).parent / "migrations"

_MIGRATION_LOCK = 0x6C6976656E657373  # "liveness": no other program's advisory lock in the same database
_OLDEST_WRITER = "oldest_writer"

# A migration that waits for a table lock blocks all later statements on that table, heartbeats included. So it fails if it
# cannot lock its tables soon, and the next start tries again.
LOCK_TIMEOUT_MS = 3_000


class Revisions:
    """The revisions that this version knows, and the tables that it may write to."""

    def __init__(self, folder: Path = MIGRATIONS) -> None:
        # Imported here: only a starting server needs it, and it is slow to load.
        from alembic.script import ScriptDirectory

        self.folder = folder
        self.scripts: ScriptDirectory = ScriptDirectory(str(folder))
        self.known = frozenset(script.revision for script in self.scripts.walk_revisions())
        self.head = self.scripts.get_current_head()

    def check(self, current: str | None, oldest_writer: str | None) -> None:
        """Refuse tables that this code must not write to."""
        if not (current is None or current in self.known or oldest_writer in self.known):
            raise WrittenByNewerVersion(what=f"tables of revision {current}")

    def check_tables(self, connection: Connection) -> None:
        """Check the current tables: another node may have migrated them since they were opened."""
        current = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        self.check(current, _read_oldest_writer(connection))

    def oldest_writer(self) -> str | None:
        """The oldest writer that the newest migration states."""
        assert self.head is not None
        stated: str | None = getattr(self.scripts.get_revision(self.head).module, _OLDEST_WRITER, None)
        return stated

    def excludes_writer(self, revision: str) -> bool:
        """Whether code of this revision must not write to tables of the newest revision."""
        oldest = self.oldest_writer() or self.head
        return oldest not in {script.revision for script in self.scripts.iterate_revisions(revision, "base")}


def lock_out_starts(connection: Connection) -> None:
    """Let no other node open the database until this transaction ends. SQLite serialises writers anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")


def migrate(connection: Connection, revisions: Revisions) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

    lock_out_starts(connection)
    current = MigrationContext.configure(connection).get_current_revision()
    if current == revisions.head:
        return
    if current is not None and current not in revisions.known:
        revisions.check(current, _read_oldest_writer(connection))
        return
    if connection.dialect.name == "postgresql" and current is not None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    settings = Config()
    settings.set_main_option("script_location", str(revisions.folder))
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
    _write_oldest_writer(connection, revisions.oldest_writer())
    if current is not None and revisions.excludes_writer(current):
        connection.execute(update(shards).values(epoch=shards.c.epoch + 1))


def _read_oldest_writer(connection: Connection) -> str | None:
    stored: str | None = connection.execute(
        select(meta.c.value).where(meta.c.name == _OLDEST_WRITER)
    ).scalar()
    return stored


def _write_oldest_writer(connection: Connection, oldest_writer: str | None) -> None:
    connection.execute(delete(meta).where(meta.c.name == _OLDEST_WRITER))
    if oldest_writer is not None:
        connection.execute(insert(meta), [{"name": _OLDEST_WRITER, "value": oldest_writer}])
