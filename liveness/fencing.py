"""Reject a zombie's writes in your own database. Public name of `liveness.integrations.fencing`; see docs/fencing.md."""

from liveness.config.extras import server_parts_needed

try:
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
except ModuleNotFoundError as error:
    raise ImportError(server_parts_needed("liveness.fencing")) from error

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
