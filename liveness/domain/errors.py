"""All reasons for which a request is refused.

LivenessError
├── InvalidRequest          the client must change the request
│   ├── InvalidField
│   ├── MalformedRequest
│   │   └── RequestTooLarge
│   ├── PageTokenInvalid
│   └── ResumeTokenInvalid
├── Refused                 the request is valid, the state does not allow it
│   ├── StaleHeartbeat
│   ├── SessionSuperseded
│   ├── SessionNotCurrent
│   ├── AttachmentReplaced
│   ├── WorkerCleanedUp
│   ├── WorkerActive
│   ├── WorkerKeyHeld
│   ├── ComponentChangeRefused
│   ├── WorkerNotActive
│   ├── WorkerPaused
│   ├── WorkerDraining
│   ├── FencedOff
│   ├── ActivityHeld
│   ├── ActivityNotAvailable
│   ├── ActivityFinished
│   ├── ActivityNotRetryable
│   ├── TaskFinished
│   ├── RelayNotConfigured
│   ├── NotForwarded
│   ├── SessionNeedsToken
│   ├── EventsNotRelayed
│   └── TooLittleHistory
├── Exists                  it exists already, and differs
│   ├── ActivityDiffers
│   └── ScheduleExists
├── Exhausted               a limit is reached
│   ├── WorkerQuotaExceeded
│   ├── TokenQuotaExceeded
│   ├── BindingQuotaExceeded
│   ├── OrderQuotaExceeded
│   ├── TooManyLogRequests
│   ├── SeriesQuotaExceeded
│   ├── TooManySamplesWaiting
│   ├── ReplicaQuotaExceeded
│   ├── ActivityQuotaExceeded
│   ├── ActivityBytesExceeded
│   ├── UnitQuotaExceeded
│   ├── ScheduleQuotaExceeded
│   ├── ConcurrencyLimitReached
│   ├── LimitQuotaExceeded
│   ├── TooManyPolls
│   ├── TooManyWatchers
│   ├── TooManyStreams
│   ├── TooManyConnections
│   └── RateLimited
├── Unauthenticated         the server does not know who calls
├── Denied                  the caller is known, and may not do this
│   ├── PermissionDenied
│   └── WorkerKeyOwned
├── PeerNotAllowed          a frontend calls what only nodes may
├── NotFound
│   ├── WorkerNotFound
│   ├── DeathNotFound
│   ├── ComponentNotFound
│   ├── ComponentGroupNotFound
│   ├── RegistryEntryNotFound
│   ├── ActivityNotFound
│   ├── UnitNotFound
│   ├── ScheduleNotFound
│   ├── ConcurrencyLimitNotFound
│   ├── NamespaceNotFound
│   ├── TaskNotFound
│   └── TokenNotFound
└── Unavailable             try again; nothing is known to have changed
    ├── ShardUnavailable
    ├── StoreFull
    ├── ShardMoved
    ├── WrongNode
    ├── CutOff
    ├── NoNodeReachable
    ├── NodeLost
    ├── BrokerUnavailable
    ├── SupervisorSilent
    └── ShuttingDown
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, get_type_hints

from liveness.templated_error import TemplatedError


class LivenessError(TemplatedError):
    reason: ClassVar[str] = "LIVENESS_ERROR"
    """Machine-readable, part of the API: a class may be renamed, its reason never."""
    template = "Something was refused."

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" not in vars(cls):
            raise TypeError(f"{cls.__name__} needs a reason of its own")
        _CLASSES_BY_REASON[cls.reason] = cls


_CLASSES_BY_REASON: dict[str, type[LivenessError]] = {}


class InvalidRequest(LivenessError):
    reason = "INVALID_REQUEST"
    template = "The request is not valid."


class InvalidField(InvalidRequest):
    reason = "INVALID_FIELD"
    template = "{field} {rule}."

    field: str
    rule: str


class MalformedRequest(InvalidRequest):
    reason = "MALFORMED_REQUEST"
    template = "The request is not a valid protobuf message: {detail}."

    detail: str


class RequestTooLarge(MalformedRequest):
    """A request that is refused before it is parsed."""

    reason = "REQUEST_TOO_LARGE"
    template = "The request has {detail}."


class PageTokenInvalid(InvalidRequest):
    reason = "PAGE_TOKEN_INVALID"
    template = "page_token does not belong to this request; use the one from the previous page, with the same filter."


class ResumeTokenInvalid(InvalidRequest):
    reason = "RESUME_TOKEN_INVALID"
    template = "resume_token cannot be used: {why}."

    why: str = "it does not belong to this request; use one from the same selection of events"
    shards: str = ""
    """Ids of the shards of which events were deleted that the watcher has not seen; empty if none were."""
    missing_events: int = 0
    """The watcher missed at most so many."""
    complete_since: str = ""
    """No newer event than this was deleted, in RFC 3339; empty if it is not known."""


class Unauthenticated(LivenessError):
    reason = "UNAUTHENTICATED"
    template = "The call has no valid credential: {why}."

    why: str = "send a token as `authorization: Bearer TOKEN`"


class Denied(LivenessError):
    reason = "DENIED"
    template = "The caller may not do this."


class PermissionDenied(Denied):
    reason = "PERMISSION_DENIED"
    template = "{principal} may not do this; it needs the role {role} in {where}."

    principal: str
    role: str
    where: str


class WorkerKeyOwned(Denied):
    reason = "WORKER_KEY_OWNED"
    template = "The worker key {worker} belongs to another principal; an operator can free it with `liveness workers forget`."

    worker: str


class Refused(LivenessError):
    reason = "REFUSED"
    template = "The state does not allow this."


class StaleHeartbeat(Refused):
    reason = "STALE_HEARTBEAT"
    template = "Heartbeat {sequence} came after heartbeat {last_sequence} of the same session was applied."

    sequence: int
    last_sequence: int


class SessionSuperseded(Refused):
    reason = "SESSION_SUPERSEDED"
    template = "Session {session_id} of worker {worker} was replaced by a newer one; this process must stop its work."

    session_id: str
    worker: str


class AttachmentReplaced(Refused):
    reason = "ATTACHMENT_REPLACED"
    template = "A newer stream has attached worker {worker} with attach_number {newest}; use a higher number than that."

    worker: str
    newest: int


class SessionNotCurrent(Refused):
    reason = "SESSION_NOT_CURRENT"
    template = "Session {session_id} is not the current one of worker {worker}."

    session_id: str
    worker: str


class WorkerCleanedUp(Refused):
    reason = "WORKER_CLEANED_UP"
    template = "Worker {worker} was cleaned up; a new session of its key must say new_incarnation in its first heartbeat."

    worker: str


class WorkerActive(Refused):
    reason = "WORKER_ACTIVE"
    template = (
        "Worker {worker} is ACTIVE and is not forgotten; end its lease first, with `liveness workers drain` or "
        "`liveness workers expire`."
    )

    worker: str


class WorkerKeyHeld(Refused):
    reason = "WORKER_KEY_HELD"
    template = "Another session, on {host}, has a live lease of worker {worker}."

    worker: str
    host: str


class ComponentChangeRefused(Refused):
    reason = "COMPONENT_CHANGE_REFUSED"
    template = "Component {component} cannot become {status}: {why}."

    component: str
    status: str
    why: str


class WorkerNotActive(Refused):
    reason = "WORKER_NOT_ACTIVE"
    template = "Worker {worker} is {state}, not ACTIVE."

    worker: str
    state: str


class WorkerPaused(Refused):
    reason = "WORKER_PAUSED"
    template = "Worker {worker} is paused and takes no new work; resume it first."

    worker: str


class WorkerDraining(Refused):
    reason = "WORKER_DRAINING"
    template = "Worker {worker} is being drained and takes no new work."

    worker: str


class FencedOff(Refused):
    reason = "FENCED_OFF"
    template = "Worker {worker} no longer holds attempt {attempt} of activity {activity} under lease epoch {epoch}: {why}."

    worker: str
    attempt: int
    activity: str
    epoch: int
    why: str


class ActivityHeld(Refused):
    reason = "ACTIVITY_HELD"
    template = "Activity {activity} is held by worker {holder}."

    activity: str
    holder: str


class ActivityNotAvailable(Refused):
    reason = "ACTIVITY_NOT_AVAILABLE"
    template = "Activity {activity} is {state}; it cannot be claimed now."

    activity: str
    state: str


class ActivityFinished(Refused):
    reason = "ACTIVITY_FINISHED"
    template = "Activity {activity} is {state} already."

    activity: str
    state: str


class ActivityNotRetryable(Refused):
    reason = "ACTIVITY_NOT_RETRYABLE"
    template = "Activity {activity} is {state}; only a QUARANTINED or FAILED one can be given a fresh start."

    activity: str
    state: str


class TaskFinished(Refused):
    reason = "TASK_FINISHED"
    template = "Task {task_id} is {state} already."

    task_id: int
    state: str


class RelayNotConfigured(Refused):
    reason = "RELAY_NOT_CONFIGURED"
    template = "This server relays nothing; start it with --relay."


class EventsNotRelayed(Refused):
    reason = "EVENTS_NOT_RELAYED"
    template = "This server relays reschedules, but no events; start it with --relay-events."


class TooLittleHistory(Refused):
    reason = "TOO_LITTLE_HISTORY"
    template = (
        "There is too little history to tune namespace {namespace}: {deaths} died of silence within {days}, and "
        "{needed} deaths are needed."
    )

    namespace: str
    deaths: str
    days: str
    needed: int


class NotForwarded(Refused):
    reason = "NOT_FORWARDED"
    template = "This is the cluster's port, for nodes and frontends; call this node where it listens for clients (--listen)."


class SessionNeedsToken(Refused):
    reason = "SESSION_NEEDS_TOKEN"
    template = "Sign in with a token that this server issued; other credentials go with each call."


class Exists(LivenessError):
    reason = "EXISTS"
    template = "It exists already."


class ActivityDiffers(Exists):
    reason = "ACTIVITY_DIFFERS"
    template = "Activity {activity} is known already, with another {what}; schedule it under another id."

    activity: str
    what: str


class ScheduleExists(Exists):
    reason = "SCHEDULE_EXISTS"
    template = (
        "Schedule {schedule} exists in namespace {namespace} already, and says something else; update it, or choose another "
        "name."
    )

    schedule: str
    namespace: str


class Exhausted(LivenessError):
    reason = "EXHAUSTED"
    template = "A limit is reached."


class WorkerQuotaExceeded(Exhausted):
    reason = "WORKER_QUOTA_EXCEEDED"
    template = (
        "Namespace {namespace} has its {limit} workers, {inactive} of them INACTIVE, which count until their "
        "cleanup_delay is over or `liveness workers forget` removes them; otherwise raise max_workers."
    )

    namespace: str
    limit: int
    inactive: int = 0


class TokenQuotaExceeded(Exhausted):
    reason = "TOKEN_QUOTA_EXCEEDED"
    template = "{principal} has {limit} live tokens already; revoke one first."

    principal: str
    limit: int


class BindingQuotaExceeded(Exhausted):
    reason = "BINDING_QUOTA_EXCEEDED"
    template = (
        "Worker {worker} would hold {count} activities; the limit is {limit} (max_bindings_per_worker)."
    )

    worker: str
    count: int
    limit: int


class OrderQuotaExceeded(Exhausted):
    reason = "ORDER_QUOTA_EXCEEDED"
    template = "{limit} orders to group {group} wait for its supervisor; start it, then give more."

    group: str
    limit: int


class TooManyLogRequests(Exhausted):
    reason = "TOO_MANY_LOG_REQUESTS"
    template = "Too many requests for output of group {group} wait for its supervisor; try again later."

    group: str


class SeriesQuotaExceeded(Exhausted):
    reason = "SERIES_QUOTA_EXCEEDED"
    template = (
        "{whose} has its {limit} series of metrics, and this report brings {added} new ones; use fewer values of labels, or "
        "raise {setting}."
    )

    whose: str
    limit: int
    added: int
    setting: str


class TooManySamplesWaiting(Exhausted):
    reason = "TOO_MANY_SAMPLES_WAITING"
    template = "Too many samples of metrics wait to be stored; report again later, and less often."


class ReplicaQuotaExceeded(Exhausted):
    reason = "REPLICA_QUOTA_EXCEEDED"
    template = "{entry} has {limit} live replicas already; give each process a name of its own."

    entry: str
    limit: int


class ActivityQuotaExceeded(Exhausted):
    reason = "ACTIVITY_QUOTA_EXCEEDED"
    template = (
        "Namespace {namespace} has its {limit} open activities; let workers finish some, cancel some, or raise "
        "max_open_activities."
    )

    namespace: str
    limit: int


class UnitQuotaExceeded(Exhausted):
    reason = "UNIT_QUOTA_EXCEEDED"
    template = (
        "Namespace {namespace} has its {limit} units of work; forget those that nobody works on any more, or raise "
        "max_progress_units."
    )

    namespace: str
    limit: int


class ScheduleQuotaExceeded(Exhausted):
    reason = "SCHEDULE_QUOTA_EXCEEDED"
    template = "Namespace {namespace} has its {limit} schedules; delete those that nobody needs any more, or raise max_schedules."

    namespace: str
    limit: int


class ConcurrencyLimitReached(Exhausted):
    reason = "CONCURRENCY_LIMIT_REACHED"
    template = "{running} of {limit} activities of workflow {workflow} are running; wait until one ends, or raise the limit."

    workflow: str
    running: int
    limit: int


class LimitQuotaExceeded(Exhausted):
    reason = "LIMIT_QUOTA_EXCEEDED"
    template = (
        "Namespace {namespace} has its {limit} concurrency limits; remove those that nobody needs any more, or raise "
        "max_concurrency_limits."
    )

    namespace: str
    limit: int


class ActivityBytesExceeded(Exhausted):
    reason = "ACTIVITY_BYTES_EXCEEDED"
    template = (
        "The inputs of all open activities of namespace {namespace} would exceed {limit} bytes with these {added}; let workers "
        "finish some, send smaller inputs, or raise max_open_activity_bytes."
    )

    namespace: str
    limit: int
    added: int


class TooManyPolls(Exhausted):
    reason = "TOO_MANY_POLLS"
    template = "Worker {worker} has {limit} polls waiting; let it wait for several activities with one."

    worker: str
    limit: int


class RateLimited(Exhausted):
    reason = "RATE_LIMITED"
    template = "Too many {what} of {whose}; try again in {retry_after_ms} ms."

    whose: str
    retry_after_ms: int
    what: str = "heartbeats"


class TooManyWatchers(Exhausted):
    reason = "TOO_MANY_WATCHERS"
    template = "This server has its {limit} event streams; close some, or watch at another server."

    limit: int


class PeerNotAllowed(LivenessError):
    reason = "PEER_NOT_ALLOWED"
    template = (
        "The certificate of this peer is one of a {kind}, which may not call {method}; only a node may."
    )

    kind: str
    """`frontend`, or `stranger` if its certificate names no kind."""
    method: str


class TooManyStreams(Exhausted):
    reason = "TOO_MANY_STREAMS"
    template = "{whose} has {limit} open streams at this server already; close some, or let one stream carry several workers."

    whose: str
    limit: int


class TooManyConnections(Exhausted):
    reason = "TOO_MANY_CONNECTIONS"
    template = "{whose} uses {limit} connections to this server already; let its clients share connections, or close some."

    whose: str
    limit: int


class NotFound(LivenessError):
    reason = "NOT_FOUND"
    template = "It does not exist."


class WorkerNotFound(NotFound):
    reason = "WORKER_NOT_FOUND"
    template = "There is no worker {worker} in namespace {namespace}."

    worker: str
    namespace: str


class DeathNotFound(NotFound):
    reason = "DEATH_NOT_FOUND"
    template = "Worker {worker} has not died{when}, as far as its history is kept; it is {state}."

    worker: str
    when: str
    state: str


class ComponentNotFound(NotFound):
    reason = "COMPONENT_NOT_FOUND"
    template = "There is no component {component} in namespace {namespace}."

    component: str
    namespace: str


class UnitNotFound(NotFound):
    reason = "UNIT_NOT_FOUND"
    template = "Nobody has reported progress of unit {unit} in namespace {namespace}."

    unit: str
    namespace: str


class ScheduleNotFound(NotFound):
    reason = "SCHEDULE_NOT_FOUND"
    template = "There is no schedule {schedule} in namespace {namespace}."

    schedule: str
    namespace: str


class ConcurrencyLimitNotFound(NotFound):
    reason = "CONCURRENCY_LIMIT_NOT_FOUND"
    template = "Workflow {workflow} has no concurrency limit in namespace {namespace}."

    workflow: str
    namespace: str


class ComponentGroupNotFound(NotFound):
    reason = "COMPONENT_GROUP_NOT_FOUND"
    template = "No supervisor ever ran a group {group} in namespace {namespace}."

    group: str
    namespace: str


class RegistryEntryNotFound(NotFound):
    reason = "REGISTRY_ENTRY_NOT_FOUND"
    template = "No component {entry} is registered in namespace {namespace}; register it first."

    entry: str
    namespace: str


class ActivityNotFound(NotFound):
    reason = "ACTIVITY_NOT_FOUND"
    template = "There is no activity {activity} in namespace {namespace}."

    activity: str
    namespace: str


class NamespaceNotFound(NotFound):
    reason = "NAMESPACE_NOT_FOUND"
    template = "This server does not serve namespace {namespace}; it serves: {known}."

    namespace: str
    known: str


class TokenNotFound(NotFound):
    reason = "TOKEN_NOT_FOUND"
    template = "There is no token {token_id}."

    token_id: str


class TaskNotFound(NotFound):
    reason = "TASK_NOT_FOUND"
    template = "There is no task {task_id}."

    task_id: int


class Unavailable(LivenessError):
    reason = "UNAVAILABLE"
    template = "Temporarily unavailable; try again."


class ShardUnavailable(Unavailable):
    reason = "SHARD_UNAVAILABLE"
    template = "Shard {shard_id} is being re-read; try again."

    shard_id: int


class StoreFull(Unavailable):
    reason = "STORE_FULL"
    template = "The disk of the database is full, so nothing can be stored ({detail}); make room, and the server goes on by itself."

    detail: str


class ShardMoved(Unavailable):
    reason = "SHARD_MOVED"
    template = "Shard {shard_id} is served by node {node_id} at {address} now."

    shard_id: int
    node_id: str
    address: str
    epoch: int


class WrongNode(Unavailable):
    reason = "WRONG_NODE"
    template = "This is node {node_id}, not {wanted}: that one is gone, or gives out this address by mistake; then set its --advertise."

    node_id: str
    wanted: str


class NoNodeReachable(Unavailable):
    reason = "NO_NODE_REACHABLE"
    template = "No liveness node can be reached from here; try again, and check that the nodes run if this error persists."


class CutOff(Unavailable):
    reason = "CUT_OFF"
    template = "Node {node_id} cannot reach its database, and no other node answers it; try again, or on another node."

    node_id: str


class NodeLost(Unavailable):
    reason = "NODE_LOST"
    template = "Node {node_id} at {address} failed before it answered, so the outcome of the call is unknown; try again."

    node_id: str
    address: str


class BrokerUnavailable(Unavailable):
    reason = "BROKER_UNAVAILABLE"
    template = "The broker takes no messages now, after {published} were published: {why}; try again."

    published: int
    why: str


class SupervisorSilent(Unavailable):
    reason = "SUPERVISOR_SILENT"
    template = (
        "The supervisor of group {group} does not run, or does not answer; see `liveness components list`."
    )

    group: str


class ShuttingDown(Unavailable):
    reason = "SHUTTING_DOWN"
    template = "The server is shutting down; try again later, or on another node."


def error_from_reason(reason: str, fields: Mapping[str, str]) -> LivenessError | None:
    """Rebuild an error that another node reported.

    None if this version does not know the reason, or if the other version reports it without a field that is needed here
    and has no default. Fields that only the other version knows are dropped.
    """
    kind = _CLASSES_BY_REASON.get(reason)
    if kind is None:
        return None
    types = get_type_hints(kind)
    build: Callable[..., LivenessError] = kind
    try:
        return build(**{name: types[name](fields[name]) for name in kind.field_names if name in fields})
    except (TypeError, ValueError):
        return None
