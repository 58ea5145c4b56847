"""Bring a database's tables to this version's shape, or refuse one that is ahead of it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from liveness.store.errors import WrittenByNewerVersion

MIGRATIONS = Path(__file__).parent / "migrations"

_TURN = 0x6C6976656E657373  # "liveness": no other program's advisory lock in the same database


def migrate(connection: Connection) -> None:
    # Imported here: only a starting server needs it, and it is slow to load.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

    if connection.dialect.name == "postgresql":
        # Nodes that start side by side take turns, until their transaction ends. SQLite's writers always do.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")
    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS))
    settings.attributes["connection"] = connection
    current = MigrationContext.configure(connection).get_current_revision()
    check_revision(current)
    command.upgrade(settings, "head")


def check_revision(current: str | None) -> None:
    """Refuse tables that this version does not know."""
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if current is not None and current not in known:
        raise WrittenByNewerVersion(what=f"tables of revision {current}")
