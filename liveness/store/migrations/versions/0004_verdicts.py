"""How often a worker was declared dead, and how often that was wrong. Counted from here on."""

from liveness.store.migrations import frozen_sql

revision = "0004"
down_revision = "0003"
oldest_writer = "0003"  # which counts nothing here, and disturbs nobody


def upgrade() -> None:
    frozen_sql.run(revision)
