"""The first tables."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    script = Path(__file__).with_name(f"{revision}.{op.get_bind().dialect.name}.sql")
    for statement in script.read_text().split(";\n"):
        if statement.strip():
            op.get_bind().exec_driver_sql(statement)
