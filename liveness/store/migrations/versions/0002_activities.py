"""Activities in every state, their holders, and whether a lost activity died with its worker."""

from liveness.store.migrations import frozen_sql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    frozen_sql.run(revision)
