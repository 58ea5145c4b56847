"""Dead letters are counted every few seconds, among all the tasks that are done."""

from liveness.store.migrations import frozen_sql

revision = "0005"
down_revision = "0004"
oldest_writer = "0003"  # to which an index is nothing new


def upgrade() -> None:
    frozen_sql.run(revision)
