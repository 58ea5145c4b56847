"""Activities in every state, who holds them, and whether a lost one died with its worker."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    script = Path(__file__).with_name(f"{revision}.{op.get_bind().dialect.name}.sql")
    for statement in script.read_text().split(";\n"):
        if statement.strip():
            op.get_bind().exec_driver_sql(statement)
