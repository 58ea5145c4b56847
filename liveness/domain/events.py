"""Events: facts in the past tense. Each carries the values that shaped the decision, so replay needs no settings.

The golden rows in `tests/unit/store` freeze the stored form of every class and version: add fields with defaults, or a
new class; never rename or reinterpret a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from liveness.domain.component import ComponentOrder, ComponentStatus, ProcessExit
from liveness.domain.death_certificate import DeathCertificate
from liveness.domain.keys import ActivityId
from liveness.domain.worker import BoundActivity, InactiveReason, Profile, WorkerStatus


class LeaseRenewed(NamedTuple):
    """The plain heartbeat. A tuple, packed with others into one row: it is nearly all of the traffic. Each heartbeat that
    renews a lease causes exactly one, so that their number is the number of heartbeats."""

    sequence: int
    at_ms: int
    successes: int
    """Total since registration, like `errors`."""
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The common part of registration, session replacement and resurrection: a new lease with a given set of bindings."""

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
    principal: str = ""
    """The principal that owns the worker's key from now on; empty if callers are not asked."""
    error_reported: bool = False
    """Whether this heartbeat reported `last_error`. Otherwise, and in events of early versions, it is the error as known
    before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered(Activation):
    """A key has a worker: for the first time, again after it was forgotten, or after it was cleaned up, in a new
    incarnation. The log row's sequence becomes the worker's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReplaced(Activation):
    """The process of the old session is gone: activities that it held and `bindings` does not name are rescheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResurrected(Activation):
    """Activities that the worker lost before stay lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAdopted:
    """The key of a worker that registered before callers were asked who they are now belongs to its principal."""

    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTermsChanged:
    granted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingsChanged:
    """`unbound` is applied before `bound`: both may name the same activity."""

    bound: tuple[BoundActivity, ...]
    unbound: tuple[ActivityId, ...]
    """Includes activities that the worker was told to cancel and has now stopped."""
    resync: bool
    """Whether the server may not know the worker's whole set of bindings after this event."""
    confirmed: tuple[ActivityId, ...] = ()
    """Hand-outs that the worker is now known to have received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHanded:
    """The service bound an attempt that a poll or a claim gave to the worker."""

    activity: BoundActivity


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingsEnded:
    """The service ended bindings. `taken`: the attempts were taken back, and the worker is told to stop them."""

    ids: tuple[ActivityId, ...]
    taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPaused:
    reason: str
    by: str = ""
    """The principal that ordered it, here and in other events of operators' orders; empty if nobody was asked who calls, and
    in events of early versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResumed:
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBegun:
    reason: str
    deadline_ms: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectGraceGranted:
    """The lease has a disconnect grace from now on."""

    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescribed:
    profile: Profile
    status: WorkerStatus
    last_error: str
    loop_lag_ms: int = 0
    error_reported: bool = False
    """As in `Activation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeactivated:
    """The worker left ACTIVE; every activity that it held is rescheduled."""

    reason: InactiveReason
    detail: str
    at_ms: int
    cleanup_delay_ms: int
    certificate: DeathCertificate | None = None
    """Present if the server declared the worker dead; events of early versions have none."""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCleanedUp:
    at_ms: int
    tombstone_retention_ms: int
    keeps_sessions: bool = False
    """Whether the tombstone remembers the replaced sessions, so that they cannot begin a new incarnation. Events of early
    versions drop them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForgotten:
    """The tombstone is gone, because its retention is over or an operator removed it: the key may register again."""

    epoch_floor: int = 0
    """Above every lease epoch of the forgotten worker: workers that register in this shard later begin at it or higher.
    0 in events of early versions, which raise no floor."""
    reason: str = ""
    """The operator's reason; empty if retention forgot the worker."""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentChanged:
    """The supervisor of a component reported another status, or other facts about it. The fields are those of `Component`."""

    number: int
    status: ComponentStatus
    wall_ms: int
    """When it happened, by the supervisor's clock."""
    session_id: str
    reason: str
    by: str
    process_id: int
    process_start_ms: int
    paused: bool
    wanted: bool
    details: str
    restart_count: int
    restarts: tuple[int, ...]
    last_exit: ProcessExit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsOrdered:
    """An operator gave an order to a group. The event is about the worker that is the group's supervisor."""

    order: ComponentOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentOrdersDone:
    """The supervisor has carried out all orders up to this number."""

    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChanged:
    """A component was registered, or says something else of itself. The fields are those of `Entry`, whole."""

    uri: str
    status: str
    capacity: int | None
    runtime: str
    interval_ms: int
    lease_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSeen:
    """Another process than the one that holds the lease registered the component's name, or was heard of again."""

    session_id: str
    host_name: str
    process_id: str
    uri: str
    at_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLeft:
    """A replica said goodbye, or has the name now."""

    session_id: str


WorkerEvent = (
    LeaseRenewed
    | WorkerRegistered
    | SessionReplaced
    | WorkerResurrected
    | WorkerAdopted
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
    | ComponentChanged
    | ComponentsOrdered
    | ComponentOrdersDone
    | EntryChanged
    | ReplicaSeen
    | ReplicaLeft
)


class Retry(NamedTuple):
    """The retry policy of an activity."""

    initial_ms: int = 1_000
    coefficient: float = 2.0
    max_ms: int = 100_000
    max_attempts: int = 0
    """How many attempts may fail or be lost with their worker; 0 for any number."""
    max_deaths: int | None = None
    """How many workers in a row may die with it; None for the limit of the namespace, 0 for any number."""


class Priority(NamedTuple):
    """In which order activities that wait in one task queue are handed out."""

    priority_key: int = 3
    """1 to 5; lower ones come first."""
    fairness_key: str = ""
    """Activities of one priority are handed out to the keys by turns."""
    fairness_weight: float = 1.0
    """How many turns the key gets, compared with others."""


DEFAULT_PRIORITY = Priority()


class TimeLimits(NamedTuple):
    """How long an activity may take, on the observed clock of its shard; 0 for any time."""

    schedule_to_close_ms: int = 0
    """From when it could first start until it is finished, over all attempts."""
    schedule_to_start_ms: int = 0
    """From when an attempt became available until a worker holds it."""
    start_to_close_ms: int = 0
    """From when a worker was handed an attempt until the attempt ends."""
    heartbeat_ms: int = 0
    """Between two heartbeats of an attempt."""


NO_LIMITS = TimeLimits()


class TimeLimit(StrEnum):
    """The field of `TimeLimits`, without the unit."""

    SCHEDULE_TO_CLOSE = "schedule_to_close"
    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFact:
    """The activity within its workflow; the log row names the workflow."""

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
    """When it becomes available; at once if not after `at_ms`."""
    input_encoding: str = ""
    """Chosen by the client and never read here; empty if it named none."""
    limits: TimeLimits = NO_LIMITS
    start_wall_ms: int = 0
    """The wall time at which it becomes available; 0 if `due_ms` says when."""
    priority: Priority = DEFAULT_PRIORITY
    by: str = ""
    """The principal that scheduled it; empty if nobody was asked who calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityStarted(ActivityFact):
    """A worker was handed the activity and holds it from now on."""

    worker: str
    epoch: int
    attempt: int
    at_ms: int
    verify_ms: int
    """When the service verifies that the worker received it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(ActivityFact):
    worker: str
    epoch: int
    attempt: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHeartbeatRecorded(ActivityFact):
    """The worker that holds the attempt says that it is at work on it."""

    attempt: int
    at_ms: int
    heartbeat_details: bytes | None = None
    """How far the work has come, in the worker's own words; None keeps what it said before."""
    heartbeat_details_encoding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTimedOut(ActivityFact):
    """A time limit of the activity is over. An attempt that a worker held is taken from it."""

    limit: TimeLimit
    limit_ms: int
    at_ms: int
    since_ms: int
    """When the limited time began, on the same clock as `at_ms`."""
    since_wall_ms: int
    attempt: int
    """The attempt that was held, or would have come next."""
    worker: str
    """Who held it; empty if nobody did, and then `epoch` is 0."""
    epoch: int
    heard_wall_ms: int
    """When the attempt last sent a heartbeat; 0 if it never did."""
    due_ms: int
    """When the next attempt is due; 0 if the activity failed for good."""
    message: str
    """The reason in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCompleted(AttemptEnded):
    result: bytes
    result_encoding: str = ""
    """Like `ActivityScheduled.input_encoding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityAttemptFailed(AttemptEnded):
    """The attempt failed; the next one is due at `due_ms`."""

    message: str
    due_ms: int
    stack_trace: str = ""
    """Where the handler failed, as its worker told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFailed(AttemptEnded):
    """The activity failed for good."""

    message: str
    stack_trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityGivenBack(AttemptEnded):
    """The attempt ended without an outcome: its worker returned it, or never received it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCancelled(ActivityFact):
    reason: str
    at_ms: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCancelRequested(ActivityFact):
    """The worker that held the attempt lost it and must stop."""

    attempt: int
    task_queue: str
    token: bytes
    worker: str
    epoch: int
    failures: int = 0
    """Attempts so far that failed or were lost with their worker, this one included."""
    deaths: int = 0
    """How many attempts in a row, this one included, died with their worker."""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityReleased(ActivityFact):
    attempt: int = 0
    """The attempt that another engine will run; 0 if none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityMadeAvailable(ActivityFact):
    attempt: int
    at_ms: int = 0
    fresh: bool = False
    """An operator restarted the activity: earlier failures no longer count."""
    by: str = ""
    reason: str = ""
    """The operator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityQuarantined(ActivityFact):
    """The activity waits for an operator: too many workers in a row died with it, or its worker asked for that."""

    deaths: int
    """0 if its worker asked."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHandedOn(ActivityFact):
    """Another engine took the activity."""

    at_ms: int


ActivityEvent = (
    ActivityScheduled
    | ActivityStarted
    | ActivityHeartbeatRecorded
    | ActivityTimedOut
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
class ProgressReported:
    """Work on a unit succeeded or failed. What it added, not the totals: these are in the unit's row."""

    unit: str
    worker: str
    successes: int
    error: str
    """The last error; empty if there was none."""
    report_id: str
    errors: int = 0
    """How many, if there was more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressForgotten:
    unit: str
    reason: str
    by: str = ""


class MissedPolicy(StrEnum):
    """What happens to ticks of a schedule that nobody could fire in time."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapPolicy(StrEnum):
    """What happens to a tick while the activity of the firing before is not finished."""

    ALLOW = "allow"
    SKIP = "skip"


class FiredActivity(NamedTuple):
    """The activity that each firing of a schedule schedules."""

    type: str
    task_queue: str
    input: bytes = b""
    input_encoding: str = ""
    retry: Retry = Retry()
    limits: TimeLimits = NO_LIMITS
    priority: Priority = DEFAULT_PRIORITY


class ScheduleSpec(NamedTuple):
    """What an operator says of a schedule. Either `cron` or `every_ms` is set."""

    activity: FiredActivity
    cron: str = ""
    time_zone: str = ""
    every_ms: int = 0
    offset_ms: int = 0
    missed: MissedPolicy = MissedPolicy.ONCE
    overlap: OverlapPolicy = OverlapPolicy.ALLOW
    window_ms: int = 60_000
    """A tick that is later than this is missed."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSaved:
    """A schedule was created, or all of what it says was replaced. Its times are wall times."""

    schedule_id: str
    spec: ScheduleSpec
    next_ms: int
    """When it fires next; 0 for never, like in the following events."""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePaused:
    schedule_id: str
    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResumed:
    schedule_id: str
    next_ms: int
    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired:
    """The schedule scheduled an activity, in the same commit."""

    schedule_id: str
    activity_id: str
    tick_ms: int
    """The time that it fired for; 0 if an operator triggered it."""
    next_ms: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTicksDropped:
    """Ticks that passed without a firing."""

    schedule_id: str
    count: int
    first_ms: int
    last_ms: int
    overlapping: bool
    """Because the activity before was not finished; otherwise because they were missed."""
    next_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDeleted:
    schedule_id: str
    reason: str
    by: str = ""


ScheduleEvent = (
    ScheduleSaved | SchedulePaused | ScheduleResumed | ScheduleFired | ScheduleTicksDropped | ScheduleDeleted
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimitSet:
    """At most so many activities of a workflow may be STARTED at once from now on."""

    workflow_id: str
    maximum: int
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimitRemoved:
    workflow_id: str
    reason: str = ""
    by: str = ""


ConcurrencyLimitEvent = ConcurrencyLimitSet | ConcurrencyLimitRemoved


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """The settings of one namespace changed, or the defaults that all namespaces inherit."""

    set: dict[str, float]
    unset: tuple[str, ...]
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTaken:
    """A node took the shard under a new epoch; the observed clock continues from the last commit."""

    epoch: int
    owner: str


Event = (
    WorkerEvent
    | ActivityEvent
    | ProgressReported
    | ProgressForgotten
    | ScheduleEvent
    | ConcurrencyLimitEvent
    | ConfigChanged
    | ShardTaken
)

BINDING_EVENTS = (BindingsChanged, ActivityHanded, BindingsEnded)
"""Events that only change which activities a worker holds."""

SHORT_LIVED_EVENTS = (*BINDING_EVENTS, ProgressReported, ActivityHeartbeatRecorded)
"""They are many, and rows contain their outcome: they are kept for a shorter time than those that say what became of a worker or
an activity."""
