"""Series and samples of metrics that components report."""

from liveness.store.migrations import frozen_sql

revision = "0012"
down_revision = "0011"
oldest_writer = "0003"  # it does not use the new tables


def upgrade() -> None:
    frozen_sql.run(revision)
