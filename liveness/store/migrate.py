"""Bring a database's tables to this version's shape, or refuse one that is too far ahead of it.

During a rolling upgrade, nodes of two versions share a database, and the newer has migrated it. A migration says in its
module how old the code may be that still writes to the tables after it:

    oldest_writer = "0003"      # may be left out: then only code that knows this migration may

It is stored in `meta`. A version that does not know the tables' revision, but whose own is not older than that, serves
all the same and migrates nothing.

A migration that leaves older code behind raises every shard's epoch in its own transaction: nodes that still run lose
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

# Whoever waits for a table makes everybody wait who comes after it, and heartbeats with them. A migration that cannot
# have its tables at once fails instead, and is tried again with the next start.
LOCK_TIMEOUT_MS = 3_000


class Revisions:
    """Those that a version's code knows, and which tables it may write to."""

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
        """The same for the tables as they are now: somebody may have migrated them since they were opened."""
        current = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        self.check(current, _read_oldest_writer(connection))

    def oldest_writer(self) -> str | None:
        """What the newest migration says."""
        assert self.head is not None
        stated: str | None = getattr(self.scripts.get_revision(self.head).module, _OLDEST_WRITER, None)
        return stated

    def excludes_writer(self, revision: str) -> bool:
        """Whether code of this revision must not write to tables of the newest."""
        oldest = self.oldest_writer() or self.head
        return oldest not in {script.revision for script in self.scripts.iterate_revisions(revision, "base")}


def migrate(connection: Connection, revisions: Revisions) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

    if connection.dialect.name == "postgresql":
        # Nodes that start side by side take turns, until their transaction ends. SQLite's writers always do.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
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
