"""Several nodes: the registry, worker slots per shard, and relay cursors."""

from liveness.store.migrations import frozen_sql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    frozen_sql.run(revision)
