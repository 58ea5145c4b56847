"""The machine of each node, so that no node judges processes of another machine by their number."""

from liveness.store.migrations import frozen_sql

revision = "0008"
down_revision = "0007"
oldest_writer = "0003"  # it leaves the new column empty


def upgrade() -> None:
    frozen_sql.run(revision)
