"""What operators and admins changed, and denied access."""

from liveness.store.migrations import frozen_sql

revision = "0010"
down_revision = "0009"
oldest_writer = "0003"  # it does not use the new table, and records nothing


def upgrade() -> None:
    frozen_sql.run(revision)
