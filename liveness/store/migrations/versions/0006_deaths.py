"""Who died when, for the certificates of those who died at the same time. Recording starts with this revision."""

from liveness.store.migrations import frozen_sql

revision = "0006"
down_revision = "0005"
oldest_writer = "0003"  # it does not use the new table


def upgrade() -> None:
    frozen_sql.run(revision)
