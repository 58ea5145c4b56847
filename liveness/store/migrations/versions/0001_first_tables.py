"""The first tables."""

from liveness.store.migrations import frozen_sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    frozen_sql.run(revision)
