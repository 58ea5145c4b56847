"""Run the SQL of a migration, which never changes after its release."""

from __future__ import annotations

from pathlib import Path

from alembic import op

VERSIONS = Path(__file__).with_name("versions")


def run(revision: str) -> None:
    connection = op.get_bind()
    script = VERSIONS / f"{revision}.{connection.dialect.name}.sql"
    for statement in script.read_text().split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)
