"""Facts. Past tense; each carries what shaped the decision, so that replay needs no settings.

The stored form of every class and version here is frozen by `tests/store/golden`: add fields with defaults, or a
new class; never rename or reinterpret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from liveness.domain.death_certificate import DeathCertificate
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
    loop_lag_ms: int = 0


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
    confirmed: tuple[ActivityId, ...] = ()
    """What it was handed and is now known to have heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHanded:
    """Bound by the service itself: an attempt that a poll or a claim gave to the worker."""

    activity: BoundActivity


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingsEnded:
    """The service ended bindings: an attempt is over, or was taken back and the worker is to stop it."""

    ids: tuple[ActivityId, ...]
    taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPaused:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResumed:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBegun:
    reason: str
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectGraceGranted:
    """A term of the lease from now on."""

    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescribed:
    profile: Profile
    status: WorkerStatus
    last_error: str
    loop_lag_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeactivated:
    """Left ACTIVE; everything it held is rescheduled."""

    reason: InactiveReason
    detail: str
    at_ms: int
    cleanup_delay_ms: int
    certificate: DeathCertificate | None = None
    """Where it is a verdict on the worker; events from before there were any have none."""


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
    | ActivityHanded
    | BindingsEnded
    | WorkerPaused
    | WorkerResumed
    | DrainBegun
    | DisconnectGraceGranted
    | WorkerDescribed
    | WorkerDeactivated
    | WorkerCleanedUp
    | WorkerForgotten
)


class Retry(NamedTuple):
    """How an activity is tried again."""

    initial_ms: int = 1_000
    coefficient: float = 2.0
    max_ms: int = 100_000
    max_attempts: int = 0
    """How many may fail or be lost with their worker; 0 for any number."""
    max_deaths: int | None = None
    """How many workers in a row may die with it; None for what the namespace says, 0 for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFact:
    """Of which activity of the workflow; the workflow is named beside the event."""

    run_id: str
    activity_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityScheduled(ActivityFact):
    activity_type: str
    task_queue: str
    input: bytes
    retry: Retry
    at_ms: int
    due_ms: int
    """When it becomes available; not after `at_ms` for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityStarted(ActivityFact):
    """Handed to a worker, who holds it from now on."""

    worker: str
    epoch: int
    attempt: int
    at_ms: int
    verify_ms: int
    """When it is looked whether the worker heard of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(ActivityFact):
    worker: str
    epoch: int
    attempt: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCompleted(AttemptEnded):
    result: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityAttemptFailed(AttemptEnded):
    """To be tried again at `due_ms`."""

    message: str
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFailed(AttemptEnded):
    """For good."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityGivenBack(AttemptEnded):
    """Without an outcome: by its worker, or because the worker never heard of it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCancelled(ActivityFact):
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCancelRequested(ActivityFact):
    """The worker that held it must stop: its lease is over."""

    attempt: int
    task_queue: str
    token: bytes
    worker: str
    epoch: int
    failures: int = 0
    """Attempts that failed or were lost with their worker so far, this one included."""
    deaths: int = 0
    """How many of the last ones died with it in a row."""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityReleased(ActivityFact):
    attempt: int = 0
    """The one that another engine is to run; 0 while that is not settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityMadeAvailable(ActivityFact):
    attempt: int
    at_ms: int = 0
    fresh: bool = False
    """An operator gave it a fresh start: earlier failures no longer count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityQuarantined(ActivityFact):
    """Its workers died too often in a row."""

    deaths: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHandedOn(ActivityFact):
    """Another engine has it."""

    at_ms: int


ActivityEvent = (
    ActivityScheduled
    | ActivityStarted
    | ActivityCompleted
    | ActivityAttemptFailed
    | ActivityFailed
    | ActivityGivenBack
    | ActivityCancelled
    | ActivityCancelRequested
    | ActivityReleased
    | ActivityMadeAvailable
    | ActivityQuarantined
    | ActivityHandedOn
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """Settings of a namespace, or of the default all inherit from."""

    set: dict[str, float]
    unset: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTaken:
    """A node took the shard under a new epoch; its clock goes on where the last commit left it."""

    epoch: int
    owner: str


Event = WorkerEvent | ActivityEvent | ConfigChanged | ShardTaken
