"""Reject a zombie's writes in your own database. Public name of `liveness.integrations.fencing`; see docs/fencing.md."""

from liveness.integrations.fencing import (
    FencingError,
    FencingGuard,
    NotInTransaction,
    SeenToken,
    SnapshotTooOld,
    StaleToken,
    Token,
    guarded_update,
)

__all__ = [
    "FencingError",
    "FencingGuard",
    "NotInTransaction",
    "SeenToken",
    "SnapshotTooOld",
    "StaleToken",
    "Token",
    "guarded_update",
]
