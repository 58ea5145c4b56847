"""Which events retention has deleted, and the size of the database over time.

What the versions before have deleted is not known: everything before the oldest event that a shard still has counts as
deleted. Each shard's oldest event is found through the index.
"""

from liveness.store.migrations import frozen_sql

revision = "0007"
down_revision = "0006"
oldest_writer = "0003"  # it does not use the new tables; a watcher does not learn of what it deletes


def upgrade() -> None:
    frozen_sql.run(revision)
