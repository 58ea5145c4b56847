"""Schedules."""

from liveness.store.migrations import frozen_sql

revision = "0015"
down_revision = "0014"
oldest_writer = "0003"  # it does not use the new table, and refuses a shard whose log has events about schedules to be read


def upgrade() -> None:
    frozen_sql.run(revision)
