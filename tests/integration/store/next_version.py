"""An invented next version: the same code, whose migration adds a column and a table."""

from __future__ import annotations

import shutil
from pathlib import Path

from liveness.store.migrate import MIGRATIONS, Revisions

TODAY = Revisions().head
NEXT = "0999"
VERSION = "999.0"

# Changes that do not disturb the previous version: a column with a default, and a new table.
_MIGRATION = """
from alembic import op

revision = "{revision}"
down_revision = "{before}"
{statement}


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql("ALTER TABLE activities ADD COLUMN region TEXT NOT NULL DEFAULT ''")
    connection.exec_driver_sql("CREATE TABLE regions (name TEXT PRIMARY KEY)")
"""


def write_migrations(folder: Path, statement: str = f'oldest_writer = "{TODAY}"') -> Path:
    """Write today's migrations and the next one; `statement` declares its oldest compatible writer."""
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = _MIGRATION.format(revision=NEXT, before=TODAY, statement=statement)
    (folder / "versions" / f"{NEXT}_regions.py").write_text(source)
    return folder
