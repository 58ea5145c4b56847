"""Every way a request can be refused. Each class's docstring is its message; fields fill the braces.

LivenessError
├── InvalidRequest          the client must change the request
│   ├── InvalidField
│   ├── MalformedRequest
│   ├── PageTokenInvalid
│   └── ResumeTokenInvalid
├── Refused                 the request is fine, the state is against it
│   ├── StaleHeartbeat
│   ├── SessionSuperseded
│   ├── SessionNotCurrent
│   ├── WorkerCleanedUp
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
│   └── EventsNotRelayed
├── Exists
│   └── ActivityDiffers
├── Exhausted               a limit is reached
│   ├── WorkerQuotaExceeded
│   ├── BindingQuotaExceeded
│   ├── TooManyPolls
│   └── RateLimited
├── NotFound
│   ├── WorkerNotFound
│   ├── DeathNotFound
│   ├── ActivityNotFound
│   ├── NamespaceNotFound
│   └── TaskNotFound
└── Unavailable             try again; nothing is known to have changed
    ├── ShardUnavailable
    ├── ShardMoved
    ├── WrongNode
    ├── NoNodeReachable
    ├── NodeLost
    ├── BrokerUnavailable
    └── ShuttingDown
"""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from re import sub


class LivenessError(Exception):
    """Something was refused."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(cleandoc(type(self).__doc__ or "").format(**fields))

    @property
    def reason(self) -> str:
        """Machine-readable: StaleHeartbeat → STALE_HEARTBEAT."""
        return _reason_of(type(self))


def _reason_of(kind: type[LivenessError]) -> str:
    return sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


class InvalidRequest(LivenessError):
    """The request is not valid."""


class InvalidField(InvalidRequest):
    """{field} {rule}."""


class MalformedRequest(InvalidRequest):
    """The request is not a valid protobuf message: {detail}."""


class PageTokenInvalid(InvalidRequest):
    """page_token does not belong to this request; use the one from the previous page, with the same filter."""


class ResumeTokenInvalid(InvalidRequest):
    """resume_token does not belong to this request; use one from the same selection of events."""


class Refused(LivenessError):
    """The state does not allow this."""


class StaleHeartbeat(Refused):
    """Heartbeat {sequence} came after heartbeat {last_sequence} of the same session was applied."""


class SessionSuperseded(Refused):
    """Session {session_id} of worker {worker} was replaced by a newer one; this process must stop its work."""


class SessionNotCurrent(Refused):
    """Session {session_id} is not the current one of worker {worker}."""


class WorkerCleanedUp(Refused):
    """Worker {worker} was cleaned up; register under a new instance key."""


class WorkerNotActive(Refused):
    """Worker {worker} is {state}, not ACTIVE."""


class WorkerPaused(Refused):
    """Worker {worker} is paused and takes no new work; resume it first."""


class WorkerDraining(Refused):
    """Worker {worker} is being drained and takes no new work."""


class FencedOff(Refused):
    """Worker {worker} no longer holds attempt {attempt} of activity {activity} under lease epoch {epoch}: {why}."""


class ActivityHeld(Refused):
    """Activity {activity} is held by worker {holder}."""


class ActivityNotAvailable(Refused):
    """Activity {activity} is {state}; it cannot be claimed now."""


class ActivityFinished(Refused):
    """Activity {activity} is {state} already."""


class ActivityNotRetryable(Refused):
    """Activity {activity} is {state}; only a QUARANTINED or FAILED one can be given a fresh start."""


class TaskFinished(Refused):
    """Task {task_id} is {state} already."""


class RelayNotConfigured(Refused):
    """This server relays nothing; start it with --relay."""


class EventsNotRelayed(Refused):
    """This server relays reschedules, but no events; start it with --relay-events."""


class Exists(LivenessError):
    """There is one already."""


class ActivityDiffers(Exists):
    """Activity {activity} is known already, with another {what}; schedule it under another id."""


class Exhausted(LivenessError):
    """A limit is reached."""


class WorkerQuotaExceeded(Exhausted):
    """Namespace {namespace} has its {limit} workers; remove some or raise max_workers."""


class BindingQuotaExceeded(Exhausted):
    """Worker {worker} would hold {count} activities; the limit is {limit} (max_bindings_per_worker)."""


class TooManyPolls(Exhausted):
    """Worker {worker} has {limit} polls waiting; let it wait for several activities with one."""


class RateLimited(Exhausted):
    """Too many heartbeats of {whose}; try again in {retry_after_ms} ms."""


class NotFound(LivenessError):
    """There is no such thing."""


class WorkerNotFound(NotFound):
    """There is no worker {worker} in namespace {namespace}."""


class DeathNotFound(NotFound):
    """Worker {worker} has not died{when}, as far as its history is kept; it is {state}."""


class ActivityNotFound(NotFound):
    """There is no activity {activity} in namespace {namespace}."""


class NamespaceNotFound(NotFound):
    """This server does not serve namespace {namespace}; it serves: {known}."""


class TaskNotFound(NotFound):
    """There is no task {task_id}."""


class Unavailable(LivenessError):
    """Not now; try again."""


class ShardUnavailable(Unavailable):
    """Shard {shard_id} is being re-read; try again."""


class ShardMoved(Unavailable):
    """Shard {shard_id} is served by node {node_id} at {address} now."""


class WrongNode(Unavailable):
    """This is node {node_id}, not {wanted}: another node gives out this one's address; set its --advertise."""


class NoNodeReachable(Unavailable):
    """No liveness node can be reached from here; try again, and if that goes on, look whether they run."""


class NodeLost(Unavailable):
    """Node {node_id} at {address} went away before it answered, and what became of the call is not known; try again."""


class BrokerUnavailable(Unavailable):
    """The broker takes no messages now, after {published} were published: {why}; try again."""


class ShuttingDown(Unavailable):
    """The server is shutting down; try again elsewhere or later."""


def error_from_reason(reason: str, fields: dict[str, str]) -> LivenessError | None:
    """The refusal that another node gave; None if this version does not know it."""
    kind = _classes_by_reason().get(reason)
    try:
        return kind(**fields) if kind is not None else None
    except KeyError:
        return None  # it says more, or less, than the same refusal does here


@cache
def _classes_by_reason() -> dict[str, type[LivenessError]]:
    found: dict[str, type[LivenessError]] = {}
    waiting = LivenessError.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found[_reason_of(kind)] = kind
    return found
