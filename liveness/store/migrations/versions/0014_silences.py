"""How long workers that lived were not heard, for `liveness tune`. Counting starts with this revision."""

from liveness.store.migrations import frozen_sql

revision = "0014"
down_revision = "0013"
oldest_writer = "0003"  # it does not use the new table


def upgrade() -> None:
    frozen_sql.run(revision)
