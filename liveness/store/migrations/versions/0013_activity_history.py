"""An index for the history of an activity."""

from liveness.store.migrations import frozen_sql

revision = "0013"
down_revision = "0012"
oldest_writer = "0003"  # an index changes nothing for it


def upgrade() -> None:
    frozen_sql.run(revision)
