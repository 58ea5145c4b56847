"""The settings of a follower, validated by the command that starts it."""

from __future__ import annotations

from dataclasses import dataclass, field

from liveness.client_credentials import Credentials

INTERVALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings:
    dsn: str = field(repr=False)
    liveness: tuple[str, ...]
    """Addresses of liveness."""
    namespace: str = "pgai"
    credentials: Credentials = field(default_factory=Credentials)
    """For liveness."""
    poll_ms: int = 500
    is_alone: bool = False
    """Whether no other server can share the database of liveness, so that an earlier follower is gone for certain."""
    hint_ms: int = 2_000
    """How long a worker whose heartbeat session ended counts as alive; 0: the end of a session means nothing."""
    restart_allowance_ms: int = 3_600_000
    """For how long after a restart of the database the silence of workers that were there before means nothing."""
