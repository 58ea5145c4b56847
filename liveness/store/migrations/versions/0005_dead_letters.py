"""An index on dead letters, which are counted every few seconds."""

from liveness.store.migrations import frozen_sql

revision = "0005"
down_revision = "0004"
oldest_writer = "0003"  # an index changes nothing for it


def upgrade() -> None:
    frozen_sql.run(revision)
