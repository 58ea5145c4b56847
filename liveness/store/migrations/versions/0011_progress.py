"""How far units of work are."""

from liveness.store.migrations import frozen_sql

revision = "0011"
down_revision = "0010"
oldest_writer = "0003"  # it does not use the new table, and refuses a shard whose log has reports that it would have to read


def upgrade() -> None:
    frozen_sql.run(revision)
