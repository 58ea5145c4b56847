"""Counts of workers that were declared dead, and of those that proved to be alive. Counting starts with this revision."""

from liveness.store.migrations import frozen_sql

revision = "0004"
down_revision = "0003"
oldest_writer = "0003"  # it does not use the new table


def upgrade() -> None:
    frozen_sql.run(revision)
