"""Facts. Past tense; each carries what shaped the decision, so that replay needs no settings.

The stored form of every class and version here is frozen by `tests/store/golden`: add fields with defaults, or a
new class; never rename or reinterpret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from liveness.domain.keys import ActivityId
from liveness.domain.worker import BoundActivity, InactiveReason, Profile, WorkerStatus


class LeaseRenewed(NamedTuple):
    """The plain heartbeat. A tuple, packed with others into one row: it is nearly all of the traffic."""

    sequence: int
    at_ms: int
    successes: int
    """Total since registration, as are `errors`: replaying the last renewal alone gives the same state."""
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What registering, replacing a session and resurrecting have in common: a new lease on a given set of bindings."""

    session_id: str
    sequence: int
    epoch: int
    at_ms: int
    granted_ms: int
    bindings: tuple[BoundActivity, ...]
    profile: Profile
    status: WorkerStatus
    last_error: str
    successes: int
    errors: int
    resync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered(Activation):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReplaced(Activation):
    """The old session's process is gone: what it held and `bindings` does not name is rescheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResurrected(Activation):
    """A clean slate: what was lost stays lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTermsChanged:
    granted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingsChanged:
    """What is unbound goes first, then what is bound comes: both may name the same activity."""

    bound: tuple[BoundActivity, ...]
    unbound: tuple[ActivityId, ...]
    """Also what the worker let go of after it was told to cancel it."""
    resync: bool
    """Whether the worker's whole set is in doubt afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescribed:
    profile: Profile
    status: WorkerStatus
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeactivated:
    """Left ACTIVE; everything it held is rescheduled."""

    reason: InactiveReason
    detail: str
    at_ms: int
    cleanup_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCleanedUp:
    at_ms: int
    tombstone_retention_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForgotten:
    """The tombstone's retention is over: the key may register again."""


WorkerEvent = (
    LeaseRenewed
    | WorkerRegistered
    | SessionReplaced
    | WorkerResurrected
    | LeaseTermsChanged
    | BindingsChanged
    | WorkerDescribed
    | WorkerDeactivated
    | WorkerCleanedUp
    | WorkerForgotten
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCancelRequested:
    """The worker that held it must stop: its lease is over."""

    run_id: str
    activity_id: str
    attempt: int
    task_queue: str
    token: bytes
    worker: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityReleased:
    run_id: str
    activity_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityMadeAvailable:
    run_id: str
    activity_id: str
    attempt: int


ActivityEvent = ActivityCancelRequested | ActivityReleased | ActivityMadeAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """Settings of a namespace, or of the default all inherit from."""

    set: dict[str, float]
    unset: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTaken:
    """A node took the shard under a new epoch; its clock goes on where the last commit left it."""

    epoch: int
    owner: str


Event = WorkerEvent | ActivityEvent | ConfigChanged | ShardTaken
