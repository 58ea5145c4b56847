"""The value types of the SDK's API, and their conversion to and from protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.sdk.errors import InvalidArgument
from liveness.v1 import activity_pb2, worker_pb2

ATTEMPT_MAX = 2_000_000_000
NANOS_PER_MS = 1_000_000


class FencingToken(NamedTuple):
    """Tokens of newer work compare greater: attempts rise with every hand-out of an activity, epochs with every
    activation of a worker."""

    attempt: int
    lease_epoch: int


class AttemptKey(NamedTuple):
    """One attempt of one activity, in a namespace."""

    workflow_id: str
    run_id: str
    activity_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ActivityRef:
    """One attempt of one activity. (workflow_id, run_id, activity_id) names the activity in its namespace."""

    workflow_id: str
    run_id: str = "-"
    activity_id: str = "-"
    attempt: int = 1
    task_queue: str = ""
    """The queue to which it returns if the worker dies. Empty: the worker's own."""
    token: bytes = b""
    """Data that the program's engine gets back with the reschedule. At most 2 KiB."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempt <= ATTEMPT_MAX:
            raise InvalidArgument(detail=f"attempt must be from 1 to {ATTEMPT_MAX}, not {self.attempt}.")

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.workflow_id, self.run_id, self.activity_id, self.attempt)

    def __str__(self) -> str:
        names = "/".join(name for name in (self.workflow_id, self.run_id, self.activity_id) if name != "-")
        return f"activity {names} (attempt {self.attempt})"


ActivityOrId: TypeAlias = ActivityRef | str
"""An activity, or the workflow_id of one whose activity_id is its type."""


class ActivityState(StrEnum):
    AVAILABLE = "AVAILABLE"
    WAITING = "WAITING"
    STARTED = "STARTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    QUARANTINED = "QUARANTINED"
    RELEASED = "RELEASED"
    HANDED_ON = "HANDED_ON"
    UNKNOWN = "UNKNOWN"
    """A state that this SDK does not know, from a newer server."""


FINISHED_STATES = frozenset({ActivityState.COMPLETED, ActivityState.FAILED, ActivityState.CANCELLED})
RESTING_STATES = FINISHED_STATES | {ActivityState.QUARANTINED, ActivityState.HANDED_ON}
"""An activity stays in these states unless an operator or another engine acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How an activity is retried. The server chooses the values that are None."""

    initial_interval: float | timedelta | None = None
    """Seconds before the second attempt."""
    backoff_coefficient: float = 0.0
    """The factor by which each further wait grows; with 0 the server chooses it."""
    maximum_interval: float | timedelta | None = None
    maximum_attempts: int = 0
    """How many attempts may fail or end with their worker's death. 0: any number."""
    maximum_worker_deaths: int | None = None
    """The activity is quarantined after this many consecutive attempts whose worker died. 0: never."""


# -- conversion to and from protobuf


def to_duration(span: float | timedelta) -> Duration:
    """Convert seconds or a timedelta to a protobuf Duration."""
    if not isinstance(span, timedelta):
        try:
            span = timedelta(seconds=span)
        except (OverflowError, ValueError) as error:
            raise InvalidArgument(detail=f"{span} seconds are not a valid duration: {error}.") from error
    message = Duration()
    message.FromTimedelta(span)
    return message


def ms_to_duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * NANOS_PER_MS)


def duration_to_ms(span: Duration) -> int:
    """Whole milliseconds, rounded down: a lease must not seem longer than it is."""
    return span.seconds * 1_000 + span.nanos // NANOS_PER_MS


def time_from_proto(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)


def time_to_proto(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def to_activity_ref(activity: ActivityOrId, activity_type: str = "") -> ActivityRef:
    if isinstance(activity, ActivityRef):
        return activity
    return ActivityRef(activity, activity_id=activity_type or "-")


def ref_to_proto(ref: ActivityRef) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(
        workflow_id=ref.workflow_id,
        run_id=ref.run_id,
        activity_id=ref.activity_id,
        attempt=ref.attempt,
        task_queue=ref.task_queue,
        token=ref.token,
    )


def ref_from_proto(message: worker_pb2.ActivityRef) -> ActivityRef:
    return ActivityRef(
        message.workflow_id,
        message.run_id,
        message.activity_id,
        message.attempt or 1,
        message.task_queue,
        message.token,
    )


def ref_from_task(task: activity_pb2.ActivityTask) -> ActivityRef:
    names = task.id
    return ActivityRef(
        names.workflow_id, names.run_id, names.activity_id, task.attempt or 1, task.task_queue, task.token
    )


def id_to_proto(ref: ActivityRef) -> activity_pb2.ActivityId:
    return activity_pb2.ActivityId(
        workflow_id=ref.workflow_id, run_id=ref.run_id, activity_id=ref.activity_id
    )


def retry_policy_to_proto(policy: RetryPolicy | None) -> activity_pb2.RetryPolicy | None:
    if policy is None:
        return None
    return activity_pb2.RetryPolicy(
        initial_interval=None if policy.initial_interval is None else to_duration(policy.initial_interval),
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=None if policy.maximum_interval is None else to_duration(policy.maximum_interval),
        maximum_attempts=policy.maximum_attempts,
        maximum_worker_deaths=policy.maximum_worker_deaths,
    )


_STATES: dict[int, ActivityState] = {
    number: ActivityState(name.removeprefix("ACTIVITY_STATE_"))
    for name, number in activity_pb2.ActivityState.items()
    if number
}


def state_from_proto(number: int) -> ActivityState:
    return _STATES.get(number, ActivityState.UNKNOWN)
