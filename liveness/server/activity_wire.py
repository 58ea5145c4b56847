"""The only mapping between the messages of ActivityService and domain values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from sys import intern

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.activity import Activity, ActivityState, limit_ends
from liveness.domain.activity_decider import AT_ONCE, ActivitySpec, AttemptHolder, HeartbeatDetails, Start
from liveness.domain.activity_history import AttemptOutcome, AttemptRecord, TimedEvent, attempts_of
from liveness.domain.errors import InvalidField
from liveness.domain.events import DEFAULT_PRIORITY, NO_LIMITS, Priority, Retry, TimeLimit, TimeLimits
from liveness.domain.keys import ActivityId, ActivityKey
from liveness.domain.policy import DURATION_MS_MAX
from liveness.server.validation import (
    STATES_MAX,
    check_count,
    duration_ms,
    optional_identifier,
    require_identifier,
    timestamp_ns,
)
from liveness.server.wire import attempt_number, duration, timestamp
from liveness.store.api import ActivityFilter
from liveness.store.codec import LogEntry
from liveness.v1 import activity_pb2

PAYLOAD_BYTES_MAX = 256 * 1024
ENCODING_BYTES_MAX = 64
DETAILS_BYTES_MAX = 16 * 1024
STACK_TRACE_BYTES_MAX = 16 * 1024
PRIORITY_KEY_MAX = 5
FAIRNESS_KEY_BYTES_MAX = 64
LISTED_DETAILS_BYTES_MAX = 256
ACTIVITY_TYPES_PER_POLL_MAX = 1_000
EPOCH_MAX = 2**63 - 1
COEFFICIENT_MAX = 1_000.0

# CANCEL_REQUESTED is left out: no activity stays in it beyond the turn that decides it.
_STATES: dict[ActivityState, activity_pb2.ActivityState.ValueType] = {
    state: activity_pb2.ActivityState.Value(f"ACTIVITY_STATE_{state.name}")
    for state in ActivityState
    if state is not ActivityState.CANCEL_REQUESTED
}
_STATES_BY_NUMBER = {number: state for state, number in _STATES.items()}
_OUTCOMES: dict[AttemptOutcome, activity_pb2.AttemptOutcome.ValueType] = {
    outcome: activity_pb2.AttemptOutcome.Value(f"ATTEMPT_OUTCOME_{outcome.name}")
    for outcome in AttemptOutcome
}
_LIMIT_NAMES = tuple(limit.value for limit in TimeLimit)
_TIMEOUT_TYPES: dict[str, activity_pb2.TimeoutType.ValueType] = {
    limit.value: activity_pb2.TimeoutType.Value(f"TIMEOUT_TYPE_{limit.name}") for limit in TimeLimit
}


# -- from messages


def activity_key(namespace: str, id: activity_pb2.ActivityId) -> ActivityKey:
    return ActivityKey(
        require_identifier("namespace", namespace),
        require_identifier("id.workflow_id", id.workflow_id),
        require_identifier("id.run_id", id.run_id),
        require_identifier("id.activity_id", id.activity_id),
    )


def spec(
    message: activity_pb2.ScheduleActivityRequest | activity_pb2.ClaimActivityRequest, task_queue: str
) -> ActivitySpec:
    return ActivitySpec(
        optional_identifier("activity_type", message.activity_type),
        task_queue,
        payload("input", message.input),
        _retry(message.retry_policy),
        payload_encoding("input_encoding", message.input_encoding),
        _time_limits(message.timeouts),
        _priority(message.priority),
    )


def start(message: activity_pb2.ScheduleActivityRequest, wall_ms: int) -> Start:
    """When the activity becomes available. `wall_ms`: now."""
    if not message.HasField("start_time"):
        if not message.HasField("start_delay"):
            return AT_ONCE
        return Start(duration_ms("start_delay", message.start_delay, allow_zero=True))
    if message.HasField("start_delay"):
        raise InvalidField(field="start_time", rule="must not be set together with start_delay")
    start_ms = timestamp_ns("start_time", message.start_time) // 1_000_000
    delay_ms = max(start_ms - wall_ms, 0)
    if delay_ms > DURATION_MS_MAX:
        raise InvalidField(field="start_time", rule="must be at most 100 years ahead")
    return Start(delay_ms, start_ms if delay_ms else 0)


def _priority(message: activity_pb2.Priority) -> Priority:
    default = DEFAULT_PRIORITY
    if not 0 <= message.priority_key <= PRIORITY_KEY_MAX:
        raise InvalidField(field="priority.priority_key", rule=f"must be 0 (for 3) to {PRIORITY_KEY_MAX}")
    weight = message.fairness_weight or default.fairness_weight
    if not 0.001 <= weight <= 1_000:
        raise InvalidField(field="priority.fairness_weight", rule="must be 0 (for 1) or 0.001 to 1000")
    key = optional_identifier("priority.fairness_key", message.fairness_key)
    if len(key.encode()) > FAIRNESS_KEY_BYTES_MAX:
        raise InvalidField(
            field="priority.fairness_key", rule=f"must be at most {FAIRNESS_KEY_BYTES_MAX} bytes of UTF-8"
        )
    priority = Priority(message.priority_key or default.priority_key, intern(key), weight)
    return default if priority == default else priority


def _time_limits(message: activity_pb2.ActivityTimeouts) -> TimeLimits:
    limits = TimeLimits(
        **{
            f"{name}_ms": duration_ms(f"timeouts.{name}_timeout", getattr(message, f"{name}_timeout"))
            for name in _LIMIT_NAMES
            if message.HasField(f"{name}_timeout")  # type: ignore[arg-type]
        }
    )
    return limits if any(limits) else NO_LIMITS


def heartbeat_details(message: activity_pb2.RecordActivityHeartbeatRequest) -> HeartbeatDetails | None:
    if not message.HasField("details"):
        return None
    return _details("details", message.details, message.details_encoding)


def last_heartbeat_details(message: activity_pb2.FailActivityRequest) -> HeartbeatDetails | None:
    if not message.HasField("last_heartbeat_details"):
        return None
    return _details(
        "last_heartbeat_details", message.last_heartbeat_details, message.last_heartbeat_details_encoding
    )


def _details(field: str, data: bytes, encoding: str) -> HeartbeatDetails:
    if len(data) > DETAILS_BYTES_MAX:
        raise InvalidField(field=field, rule=f"must be at most {DETAILS_BYTES_MAX} bytes")
    return HeartbeatDetails(data, payload_encoding(f"{field}_encoding", encoding))


def payload(field: str, value: bytes) -> bytes:
    if len(value) > PAYLOAD_BYTES_MAX:
        raise InvalidField(field=field, rule=f"must be at most {PAYLOAD_BYTES_MAX} bytes")
    return value


def payload_encoding(field: str, name: str) -> str:
    if len(optional_identifier(field, name).encode()) > ENCODING_BYTES_MAX:
        raise InvalidField(field=field, rule=f"must be at most {ENCODING_BYTES_MAX} bytes of UTF-8")
    return intern(name)  # few names occur, and every activity in memory has one


def activity_types(names: Collection[str]) -> frozenset[str] | None:
    """The types that a poll is for; None for all."""
    if len(names) > ACTIVITY_TYPES_PER_POLL_MAX:
        raise InvalidField(
            field="activity_types", rule=f"must name at most {ACTIVITY_TYPES_PER_POLL_MAX} types"
        )
    return frozenset(optional_identifier("activity_types", name) for name in names) or None


def _retry(message: activity_pb2.RetryPolicy) -> Retry:
    default = Retry()
    coefficient = message.backoff_coefficient or default.coefficient
    if not 1 <= coefficient <= COEFFICIENT_MAX:
        raise InvalidField(field="retry_policy.backoff_coefficient", rule="must be 1 to 1000")
    if message.maximum_attempts < 0:
        raise InvalidField(field="retry_policy.maximum_attempts", rule="must not be negative")
    if message.maximum_worker_deaths < 0:
        raise InvalidField(field="retry_policy.maximum_worker_deaths", rule="must not be negative")
    initial_ms, max_ms = default.initial_ms, default.max_ms
    if message.HasField("initial_interval"):
        initial_ms = duration_ms("retry_policy.initial_interval", message.initial_interval)
        max_ms = max(max_ms, initial_ms)
    if message.HasField("maximum_interval"):
        max_ms = duration_ms("retry_policy.maximum_interval", message.maximum_interval)
        if max_ms < initial_ms:
            raise InvalidField(
                field="retry_policy.maximum_interval", rule="must not be below initial_interval"
            )
    deaths = message.maximum_worker_deaths if message.HasField("maximum_worker_deaths") else None
    return Retry(initial_ms, coefficient, max_ms, message.maximum_attempts, deaths)


def stack_trace(value: str) -> str:
    if len(value.encode()) > STACK_TRACE_BYTES_MAX:
        raise InvalidField(
            field="stack_trace", rule=f"must be at most {STACK_TRACE_BYTES_MAX} bytes of UTF-8"
        )
    return value


def holder(
    message: activity_pb2.CompleteActivityRequest
    | activity_pb2.FailActivityRequest
    | activity_pb2.ReleaseActivityRequest
    | activity_pb2.RecordActivityHeartbeatRequest,
) -> AttemptHolder:
    if message.lease_epoch < 1 or message.lease_epoch > EPOCH_MAX:
        raise InvalidField(field="lease_epoch", rule="must be the one that came with the activity")
    if message.attempt < 1:
        raise InvalidField(field="attempt", rule="must be the one that came with the activity")
    return AttemptHolder(
        require_identifier("worker_instance_key", message.worker_instance_key),
        message.lease_epoch,
        message.attempt,
    )


def activity_filter(message: activity_pb2.ActivityFilter) -> ActivityFilter:
    states = set()
    check_count("filter.states", message.states, STATES_MAX)
    for number in message.states:
        if number not in _STATES_BY_NUMBER:
            raise InvalidField(field="filter.states", rule="is not one of the known values")
        states.add(_STATES_BY_NUMBER[number])
    return ActivityFilter(
        states=tuple(sorted(states)),
        task_queue=optional_identifier("filter.task_queue", message.task_queue),
        worker=optional_identifier("filter.worker_instance_key", message.worker_instance_key),
        type=optional_identifier("filter.activity_type", message.activity_type),
        workflow_prefix=optional_identifier("filter.workflow_id_prefix", message.workflow_id_prefix),
    )


# -- to messages


def state_number(activity: Activity) -> activity_pb2.ActivityState.ValueType:
    return _STATES[activity.state]


def _id(id: ActivityId) -> activity_pb2.ActivityId:
    return activity_pb2.ActivityId(**id._asdict())


def task_message(activity: Activity) -> activity_pb2.ActivityTask:
    message = activity_pb2.ActivityTask(
        id=_id(activity.id),
        activity_type=activity.type,
        task_queue=activity.task_queue,
        input=activity.input,
        lease_epoch=activity.epoch,
        attempt=attempt_number(activity.attempt),
        failures=activity.failures,
        last_failure=activity.last_failure,
        token=activity.token,
        input_encoding=activity.input_encoding,
        heartbeat_details=activity.details,
        heartbeat_details_encoding=activity.details_encoding,
    )
    limits = activity.limits
    if limits.start_to_close_ms:
        message.start_to_close_timeout.CopyFrom(duration(limits.start_to_close_ms))
    if limits.heartbeat_ms:
        message.heartbeat_timeout.CopyFrom(duration(limits.heartbeat_ms))
    return message


def task_limits(message: activity_pb2.ActivityTask) -> TimeLimits:
    """The limits that the worker of an attempt is told."""
    return TimeLimits(
        start_to_close_ms=_known_ms(message.start_to_close_timeout),
        heartbeat_ms=_known_ms(message.heartbeat_timeout),
    )


def _known_ms(value: Duration) -> int:
    return value.seconds * 1_000 + value.nanos // 1_000_000


def timeouts_message(limits: TimeLimits) -> activity_pb2.ActivityTimeouts:
    return activity_pb2.ActivityTimeouts(
        **{
            f"{name}_timeout": duration(limit_ms)
            for name in _LIMIT_NAMES
            if (limit_ms := getattr(limits, f"{name}_ms"))
        }
    )


def retry_message(retry: Retry) -> activity_pb2.RetryPolicy:
    return activity_pb2.RetryPolicy(
        initial_interval=duration(retry.initial_ms),
        backoff_coefficient=retry.coefficient,
        maximum_interval=duration(retry.max_ms),
        maximum_attempts=retry.max_attempts,
        maximum_worker_deaths=retry.max_deaths,
    )


def priority_message(priority: Priority) -> activity_pb2.Priority:
    return activity_pb2.Priority(**priority._asdict())


def _add_limits(message: activity_pb2.Activity, activity: Activity, now_ms: int, wall_ms: int) -> None:
    if activity.limits is not NO_LIMITS:
        message.timeouts.CopyFrom(timeouts_message(activity.limits))
    if ends := limit_ends(activity):
        first = min(ends, key=lambda end: end.end_ms)
        message.timeout_time.CopyFrom(timestamp(wall_ms - now_ms + first.end_ms))
        message.next_timeout_type = _TIMEOUT_TYPES[first.limit.value]


def attempt_messages(entries: Iterable[LogEntry]) -> list[activity_pb2.ActivityAttempt]:
    """The attempts that these events of one activity tell of, oldest first."""
    history = [TimedEvent(entry.wall_ms, entry.event) for entry in entries]  # type: ignore[arg-type]
    return [_attempt_message(record) for record in attempts_of(history)]


def _attempt_message(record: AttemptRecord) -> activity_pb2.ActivityAttempt:
    return activity_pb2.ActivityAttempt(
        attempt=attempt_number(record.attempt),
        worker_instance_key=record.worker,
        lease_epoch=record.epoch,
        start_time=_time(record.start_wall_ms),
        end_time=_time(record.end_wall_ms),
        outcome=_OUTCOMES[record.outcome],
        message=record.message,
        stack_trace=record.stack_trace,
        timeout_type=_TIMEOUT_TYPES.get(record.limit, activity_pb2.TIMEOUT_TYPE_UNSPECIFIED),
        last_heartbeat_time=_time(record.heard_wall_ms),
    )


def _time(wall_ms: int) -> Timestamp | None:
    return timestamp(wall_ms) if wall_ms else None


def activity_message(
    key: ActivityKey, activity: Activity, shard_id: int, *, now_ms: int, wall_ms: int, include_payloads: bool
) -> activity_pb2.Activity:
    """`include_payloads` adds input and result, with their encodings, and the token. `now_ms` on the shard's clock and
    `wall_ms` are the same moment."""
    since_wall_ms = activity.since_wall_ms
    if since_wall_ms is None:  # read from a row of a version that did not store it
        since_wall_ms = wall_ms - now_ms + activity.since_ms
    message = activity_pb2.Activity(
        namespace=key.namespace,
        id=_id(activity.id),
        state=state_number(activity),
        activity_type=activity.type,
        task_queue=activity.task_queue,
        attempt=attempt_number(activity.attempt),
        failures=activity.failures,
        worker_deaths=activity.deaths,
        worker_instance_key=activity.worker,
        lease_epoch=activity.epoch,
        since=timestamp(since_wall_ms),
        last_failure=activity.last_failure,
        shard_id=shard_id,
    )
    if activity.retry is not None:
        message.retry_policy.CopyFrom(retry_message(activity.retry))
    _add_limits(message, activity, now_ms, wall_ms)
    if activity.priority is not DEFAULT_PRIORITY:
        message.priority.CopyFrom(priority_message(activity.priority))
    if activity.timed_out:
        message.timeout_type = _TIMEOUT_TYPES[activity.timed_out]
    if activity.state is ActivityState.STARTED and activity.heard_wall_ms:
        message.last_heartbeat_time.CopyFrom(timestamp(activity.heard_wall_ms))
    if activity.details_wall_ms:
        message.heartbeat_details = (
            activity.details if include_payloads else activity.details[:LISTED_DETAILS_BYTES_MAX]
        )
        message.heartbeat_details_encoding = activity.details_encoding
        message.heartbeat_details_time.CopyFrom(timestamp(activity.details_wall_ms))
    if activity.state is ActivityState.WAITING:
        due_wall_ms = activity.start_wall_ms or wall_ms - now_ms + activity.due_ms
        message.due_time.CopyFrom(timestamp(due_wall_ms))
    if include_payloads:
        message.input = activity.input
        message.input_encoding = activity.input_encoding
        message.result = activity.result
        message.result_encoding = activity.result_encoding
        message.token = activity.token
    return message
