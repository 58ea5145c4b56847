"""What is asked of a worker. A command carries all that deciding needs: time and policy included."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.policy import Policy
from liveness.domain.worker import BoundActivity, InactiveReason, Profile, WorkerStatus


class Heartbeat(NamedTuple):
    session_id: str
    sequence: int
    requested_ms: int | None
    """The lease asked for; None for the default."""
    bound: tuple[BoundActivity, ...]
    unbound: tuple[BoundActivity, ...]
    full_bindings: bool
    profile: Profile
    """`NO_PROFILE` keeps what is known."""
    status: WorkerStatus
    last_error: str
    successes: int
    errors: int
    policy: Policy
    loop_lag_ms: int = 0

    @property
    def is_plain_renewal(self) -> bool:
        """Would the same again, from the same session, be nothing but a renewal?"""
        return not self.bound and not self.unbound and not self.full_bindings and not self.last_error


class Deactivate(NamedTuple):
    """Leave ACTIVE now, by goodbye or by force."""

    reason: InactiveReason
    detail: str
    policy: Policy
    session_id: str = ""
    """When given, only this session may."""
