"""Commands about a worker. A command carries everything that the decision needs, the policy included."""

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
    """`NO_PROFILE` keeps the known profile."""
    status: WorkerStatus
    last_error: str
    successes: int
    errors: int
    policy: Policy
    loop_lag_ms: int = 0
    new_incarnation: bool = False
    """The process wants to begin a new life of the key if the worker was cleaned up; in other states it means nothing."""
    lease_epoch: int = 0
    """The epoch of the last lease that the session knows to have been granted to it; 0 for none."""
    principal: str = ""
    """The principal that sent it; empty if callers are not asked."""
    only_if_free: bool = False
    """Refuse it if another session of the key has a live lease."""

    @property
    def is_plain_renewal(self) -> bool:
        """Whether the next heartbeat with the same content would only renew the lease."""
        return not self.bound and not self.unbound and not self.full_bindings and not self.last_error


class Deactivate(NamedTuple):
    """End the lease now: the worker shuts down, or an operator forces it."""

    reason: InactiveReason
    detail: str
    policy: Policy
    session_id: str = ""
    """If set, the command is refused unless this is the current session."""
    principal: str = ""
    """The worker's own principal, if it shuts down and callers are asked who they are; empty for an operator."""
    by: str = ""
    """The principal of the operator that forces it."""
