"""The tokens that callers prove themselves with, as hashes of their secrets."""

from liveness.store.migrations import frozen_sql

revision = "0009"
down_revision = "0008"
oldest_writer = "0003"  # it does not use the new table, and asks nobody who calls


def upgrade() -> None:
    frozen_sql.run(revision)
