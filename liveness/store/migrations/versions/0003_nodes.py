"""Many nodes: who serves, quotas divided among shards, and how far logs were published."""

from liveness.store.migrations import frozen_sql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    frozen_sql.run(revision)
