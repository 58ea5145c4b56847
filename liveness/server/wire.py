"""The only mapping between protobuf messages and domain values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.activity import ATTEMPT_MAX
from liveness.domain.commands import Heartbeat
from liveness.domain.component import SUPERVISOR_PREFIX
from liveness.domain.errors import InvalidField
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import BINDINGS_PER_WORKER_MAX, Policy
from liveness.domain.worker import (
    NO_PROFILE,
    BoundActivity,
    Profile,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.engine.shard import HeartbeatOutcome
from liveness.security.redaction import redact_json
from liveness.server.component_wire import component_message, group_message
from liveness.server.filter_query import filter_words
from liveness.server.validation import (
    COUNTER_MAX,
    SEQUENCE_MAX,
    STATES_MAX,
    check_count,
    duration_ms,
    is_short_printable_ascii,
    optional_identifier,
    require_identifier,
    text,
    timestamp_ns,
)
from liveness.store.api import StoredTask, WorkerFilter
from liveness.store.codec import LogEntry, event_kind, event_to_json
from liveness.store.node_registry import NodeRow
from liveness.v1 import admin_pb2, event_pb2, worker_pb2
from liveness.v1.service_pb2 import WorkerFilter as WorkerFilterMessage

METADATA_BYTES_MAX = 16 * 1024
BINDING_CHANGES_MAX = 200
FULL_BINDINGS_MAX = BINDINGS_PER_WORKER_MAX
TOKEN_BYTES_MAX = 2 * 1024
LABELS_MAX = 1_000
CAPABILITIES_MAX = 1_000
UNSET_MAX = 100

_STATES = {state.value for state in WorkerState}
_STATUSES = {status.value: status for status in WorkerStatus}


# -- from messages


def pop_counters(beat: worker_pb2.WorkerHeartbeat) -> tuple[int, int, int]:
    """Remove and return sequence, successes and errors. The rest of the message is equal for all plain heartbeats of a
    session."""
    sequence, successes, errors = beat.sequence, beat.successes, beat.errors
    if sequence:
        beat.sequence = 0
    if successes:
        beat.successes = 0
    if errors:
        beat.errors = 0
    return sequence, successes, errors


def restore_counters(beat: worker_pb2.WorkerHeartbeat, counters: tuple[int, int, int]) -> None:
    """Put back what `pop_counters` removed."""
    beat.sequence, beat.successes, beat.errors = counters


def heartbeat(
    beat: worker_pb2.WorkerHeartbeat,
    counters: tuple[int, int, int],
    policy: Policy,
    known: Worker | None,
    principal: str = "",
) -> Heartbeat:
    """Fields that equal those of the `known` worker are not validated again."""
    session_id, last_error = beat.session_id, beat.last_error
    if session_id and (known is None or session_id != known.session_id):
        optional_identifier("heartbeat.session_id", session_id)
    sequence, successes, errors = counters
    if sequence > SEQUENCE_MAX:
        raise InvalidField(field="heartbeat.sequence", rule="must be at most 2^63 - 1")
    if successes > COUNTER_MAX or errors > COUNTER_MAX:
        raise InvalidField(field="heartbeat.successes and errors", rule="must be at most 2^40 each")
    status = _STATUSES.get(beat.status)
    if status is None:
        raise InvalidField(field="heartbeat.status", rule="is not one of the known values")
    requested_ms = None
    if beat.HasField("lease_duration"):
        requested_ms = duration_ms("heartbeat.lease_duration", beat.lease_duration)
    bound, unbound, full = beat.bound_activities, beat.unbound_activities, beat.full_bindings
    changes = len(bound) + len(unbound)
    if changes > (FULL_BINDINGS_MAX if full else BINDING_CHANGES_MAX):
        rule = f"must name at most {BINDING_CHANGES_MAX} changes together ({FULL_BINDINGS_MAX} with full_bindings)"
        raise InvalidField(field="heartbeat.bound_activities and unbound_activities", rule=rule)
    return Heartbeat(
        session_id,
        sequence,
        requested_ms,
        activities("heartbeat.bound_activities", bound) if bound else (),
        activities("heartbeat.unbound_activities", unbound) if unbound else (),
        full,
        _profile(beat, last_error, known),
        status,
        last_error,
        successes,
        errors,
        policy,
        duration_ms("heartbeat.loop_lag", beat.loop_lag, allow_zero=True) if beat.HasField("loop_lag") else 0,
        beat.new_incarnation,
        beat.lease_epoch,
        principal,
        beat.only_if_free,
    )


def _profile(beat: worker_pb2.WorkerHeartbeat, last_error: str, known: Worker | None) -> Profile:
    labels, capabilities = beat.labels, beat.capabilities
    if labels:
        check_count("heartbeat.labels", labels, LABELS_MAX)
    if capabilities:
        check_count("heartbeat.capabilities", capabilities, CAPABILITIES_MAX)
    profile = Profile(
        beat.worker_identity,
        beat.task_queue,
        beat.build_id,
        beat.sdk_name,
        beat.sdk_version,
        beat.host_name,
        beat.process_id,
        timestamp_ns("heartbeat.start_time", beat.start_time) if beat.HasField("start_time") else None,
        tuple(sorted(labels.items())) if labels else (),
        tuple(capabilities) if capabilities else (),
        beat.current_job,
    )
    if known is not None and profile == known.profile:
        if last_error and last_error != known.last_error:
            _check_profile(profile, last_error)
        return profile
    if profile == NO_PROFILE and not last_error:
        return NO_PROFILE
    _check_profile(profile, last_error)
    return profile


def _check_profile(profile: Profile, last_error: str) -> None:
    size = len(last_error.encode())
    for name, value in profile._asdict().items():
        if isinstance(value, str):
            size += len(value.encode())
            if name != "current_job":
                optional_identifier(f"heartbeat.{name}", value)
    size += sum(len(name.encode()) + len(value.encode()) for name, value in profile.labels)
    size += sum(len(name.encode()) for name in profile.capabilities)
    if size > METADATA_BYTES_MAX:
        raise InvalidField(
            field="heartbeat", rule=f"must carry at most {METADATA_BYTES_MAX} bytes of metadata"
        )


def activities(field: str, refs: Iterable[worker_pb2.ActivityRef]) -> tuple[BoundActivity, ...]:
    return tuple([_activity(field, ref) for ref in refs])


def _activity(field: str, ref: worker_pb2.ActivityRef) -> BoundActivity:
    workflow_id, run_id, activity_id, task_queue = (
        ref.workflow_id,
        ref.run_id,
        ref.activity_id,
        ref.task_queue,
    )
    attempt, token = ref.attempt, ref.token
    # A heartbeat may name a thousand: one cheap check for all rules, and the single rules only if it fails.
    is_valid = workflow_id and run_id and activity_id and 0 <= attempt <= ATTEMPT_MAX
    is_valid = is_valid and len(token) <= TOKEN_BYTES_MAX
    if not is_valid or not is_short_printable_ascii(workflow_id + run_id + activity_id + task_queue):
        _check_activity(field, ref)
    return tuple.__new__(BoundActivity, (workflow_id, run_id, activity_id, attempt or 1, task_queue, token))


def _check_activity(field: str, ref: worker_pb2.ActivityRef) -> None:
    if ref.attempt < 0:
        raise InvalidField(field=f"{field}.attempt", rule="must not be negative")
    if ref.attempt > ATTEMPT_MAX:
        raise InvalidField(field=f"{field}.attempt", rule=f"must be at most {ATTEMPT_MAX}")
    if len(ref.token) > TOKEN_BYTES_MAX:
        raise InvalidField(field=f"{field}.token", rule=f"must be at most {TOKEN_BYTES_MAX} bytes")
    require_identifier(f"{field}.workflow_id", ref.workflow_id)
    require_identifier(f"{field}.run_id", ref.run_id)
    require_identifier(f"{field}.activity_id", ref.activity_id)
    optional_identifier(f"{field}.task_queue", ref.task_queue)


def worker_key(namespace: str, instance_key: str) -> WorkerKey:
    return WorkerKey(
        require_identifier("namespace", namespace), require_identifier("worker_instance_key", instance_key)
    )


def worker_filter(message: WorkerFilterMessage) -> WorkerFilter:
    states = set()
    check_count("filter.states", message.states, STATES_MAX)
    for number in message.states:
        if int(number) not in _STATES:
            raise InvalidField(field="filter.states", rule="must be ACTIVE, INACTIVE or CLEANED_UP")
        states.add(WorkerState(number))
    return WorkerFilter(
        states=tuple(sorted(states)),
        task_queue=optional_identifier("filter.task_queue", message.task_queue),
        build_id=optional_identifier("filter.build_id", message.build_id),
        host_name=optional_identifier("filter.host_name", message.host_name),
        key_prefix=optional_identifier("filter.key_prefix", message.key_prefix),
        words=filter_words("filter.query", message.query),
    )


def config_values(message: admin_pb2.NamespaceConfig) -> dict[str, float]:
    """Returns the fields that are set, under their policy names."""
    found: dict[str, float] = {}
    for field, value in message.ListFields():
        if isinstance(value, Duration):
            found[f"{field.name}_ms"] = duration_ms(f"set.{field.name}", value, allow_zero=True)
        else:
            found[field.name] = value
    # A number that is set to 0 is still set.
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None and message.HasField(field.name):  # type: ignore[arg-type]
            found[field.name] = getattr(message, field.name)
    return found


def config_field_names(names: Collection[str]) -> tuple[str, ...]:
    check_count("unset", names, UNSET_MAX)
    known = {field.name: _policy_name(field.name) for field in admin_pb2.NamespaceConfig.DESCRIPTOR.fields}
    for name in names:
        if name not in known:
            raise InvalidField(field="unset", rule=f"names no setting {text('unset', name)[:100]!r}")
    return tuple(known[name] for name in names)


def _policy_name(name: str) -> str:
    return f"{name}_ms" if f"{name}_ms" in Policy.__dataclass_fields__ else name


# -- to messages


def attempt_number(attempt: int) -> int:
    """Stored attempts may be too large for the API, because earlier versions let workers declare any number."""
    return min(attempt, 2**31 - 1)


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def timestamp(wall_ms: int) -> Timestamp:
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


NEXT_HEARTBEAT_SHARE = (0.3, 0.3666)
"""Range of the heartbeat interval as a fraction of the lease; the spread separates workers that started together."""


def fraction_of_lease(granted_ms: int, share: float) -> Duration:
    seconds, nanos = divmod(int(granted_ms * share * 1_000_000), 1_000_000_000)
    return Duration(seconds=seconds, nanos=nanos)


def lease_terms(outcome: HeartbeatOutcome, worker: Worker) -> worker_pb2.HeartbeatResult:
    """Returns the part of a reply that does not depend on the time."""
    return worker_pb2.HeartbeatResult(
        state=worker.state,  # type: ignore[arg-type]
        outcome=outcome,  # type: ignore[arg-type]
        lease_epoch=worker.epoch,
        granted_lease_duration=duration(worker.granted_ms),
    )


def heartbeat_result(
    outcome: HeartbeatOutcome,
    worker: Worker,
    *,
    now_ms: int,
    wall_ms: int,
    jitter: float,
    paused: bool = False,
) -> worker_pb2.HeartbeatResult:
    """`now_ms` on the shard's clock and `wall_ms` are the same moment. `paused`: the namespace is."""
    result = lease_terms(outcome, worker)
    result.server_time.CopyFrom(timestamp(wall_ms))
    result.next_heartbeat_after.CopyFrom(fraction_of_lease(worker.granted_ms, jitter))
    result.resync_bindings = worker.resync
    result.pause = worker.standing.paused or paused
    result.drain = worker.standing.draining
    if worker.state is WorkerState.ACTIVE:
        result.lease_deadline.CopyFrom(timestamp(wall_ms + worker.deadline_ms - now_ms))
    result.cancel_activities.extend(activity_ref(activity) for activity in worker.lost.values())
    return result


def activity_ref(activity: BoundActivity) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(**activity._replace(attempt=attempt_number(activity.attempt))._asdict())


class WorkerContext(NamedTuple):
    """Facts about a worker that are not part of its own state."""

    shard_id: int
    now_ms: int
    """On the shard's clock; `wall_ms` is the same moment."""
    wall_ms: int
    paused: bool = False
    """The whole namespace is paused."""
    attached: bool = False
    disconnected: bool = False
    lease_end_ms: int = 0
    """When the lease ends: by its duration or by its disconnect grace, whichever is first."""
    held_until_ms: int = 0
    """Until when a storm delays the end of the lease; 0 if it does not."""


def worker_message(
    key: WorkerKey, worker: Worker, context: WorkerContext, *, include_activities: bool
) -> worker_pb2.Worker:
    """`include_activities` adds the activities themselves, not only their number."""
    shard_id, now_ms, wall_ms, *_ = context
    standing, last_heartbeat_ms = worker.standing, worker.renewed_wall_ms
    if last_heartbeat_ms is None:  # read from a row of a version that did not store it
        last_heartbeat_ms = wall_ms - now_ms + worker.renewed_ms
    profile = worker.profile
    message = worker_pb2.Worker(
        namespace=key.namespace,
        worker_instance_key=key.instance_key,
        state=worker.state,  # type: ignore[arg-type]
        session_id=worker.session_id,
        sequence=worker.sequence,
        lease_epoch=worker.epoch,
        granted_lease_duration=duration(worker.granted_ms),
        last_heartbeat_time=timestamp(last_heartbeat_ms),
        bound_activity_count=len(worker.bindings),
        shard_id=shard_id,
        status=worker.status,  # type: ignore[arg-type]
        successes=worker.successes,
        errors=worker.errors,
        heartbeat_count=worker.heartbeats,
        last_error=worker.last_error,
        worker_identity=profile.worker_identity,
        task_queue=profile.task_queue,
        build_id=profile.build_id,
        sdk_name=profile.sdk_name,
        sdk_version=profile.sdk_version,
        host_name=profile.host_name,
        process_id=profile.process_id,
        labels=dict(profile.labels),
        capabilities=profile.capabilities,
        current_job=profile.current_job,
        paused=standing.paused or context.paused,
        draining=standing.draining,
        attached=context.attached,
        suspect=context.disconnected,
        principal=worker.principal,
        registered=standing.entry is not None,
    )
    if context.held_until_ms:
        message.held_until.CopyFrom(timestamp(wall_ms - now_ms + context.held_until_ms))
    if standing.last_error_wall_ms:
        message.last_error_time.CopyFrom(timestamp(standing.last_error_wall_ms))
    if standing.drain_deadline_ms:
        message.drain_deadline.CopyFrom(timestamp(wall_ms - now_ms + standing.drain_deadline_ms))
    if standing.grace_ms:
        message.disconnect_grace.CopyFrom(duration(standing.grace_ms))
    if standing.loop_lag_ms:
        message.loop_lag.CopyFrom(duration(standing.loop_lag_ms))
    if profile.start_time_ns is not None:
        message.start_time.seconds, message.start_time.nanos = divmod(profile.start_time_ns, 1_000_000_000)
    if worker.inactive_reason is not None:
        message.inactive_reason = worker.inactive_reason  # type: ignore[assignment]
        message.inactive_detail = worker.inactive_detail
    deadline = timestamp(wall_ms - now_ms + (context.lease_end_ms or worker.deadline_ms))
    if worker.state is WorkerState.ACTIVE:
        message.lease_deadline.CopyFrom(deadline)
    elif worker.state is WorkerState.INACTIVE:
        message.cleanup_time.CopyFrom(deadline)
    if standing.component is not None:
        message.component.CopyFrom(
            component_message(key, worker, standing.component, profile, message.last_heartbeat_time)
        )
    if key.instance_key.startswith(SUPERVISOR_PREFIX):
        message.component_group.CopyFrom(
            group_message(key, worker, standing.orders, profile, message.last_heartbeat_time)
        )
    if include_activities:
        message.bound_activities.extend(activity_ref(activity) for activity in worker.bindings.values())
        message.cancel_activities.extend(activity_ref(activity) for activity in worker.lost.values())
    return message


def event_message(shard_id: int, entry: LogEntry) -> event_pb2.Event:
    return event_pb2.Event(
        shard_id=shard_id,
        sequence=entry.seq,
        type=event_kind(entry.event),
        namespace=entry.namespace or "",
        worker_instance_key=entry.worker or "",
        time=timestamp(entry.wall_ms),
        observed_ms=entry.observed_ms,
        data_json=event_to_json(entry.event),
        workflow_id=entry.workflow_id or "",
    )


def event_json(shard_id: int, entry: LogEntry) -> bytes:
    """Returns the event as JSON with the field names of the proto and every field."""
    return _event_json(event_message(shard_id, entry))


def _event_json(message: event_pb2.Event) -> bytes:
    fields = MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return json.dumps(fields, separators=(",", ":")).encode()


def event_json_without_sessions(shard_id: int, entry: LogEntry) -> bytes:
    """The same where callers are asked who they are: session ids, which are capabilities, as short hashes, and without the output
    of processes, since nobody knows who reads it."""
    message = event_message(shard_id, entry)
    message.data_json = redact_json(message.data_json, shows_payloads=True, shows_output=False)
    return _event_json(message)


def config_message(values: Mapping[str, float]) -> admin_pb2.NamespaceConfig:
    message = admin_pb2.NamespaceConfig()
    for field in message.DESCRIPTOR.fields:
        name = _policy_name(field.name)
        if name not in values:
            continue
        if name != field.name:
            getattr(message, field.name).CopyFrom(duration(int(values[name])))
        else:
            is_float = field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
            setattr(message, field.name, float(values[name]) if is_float else int(values[name]))
    return message


def policy_message(policy: Policy) -> admin_pb2.NamespaceConfig:
    return config_message({name: getattr(policy, name) for name in Policy.__dataclass_fields__})


def task_message(stored: StoredTask) -> admin_pb2.Task:
    task = stored.task
    message = admin_pb2.Task(
        task_id=stored.task_id,
        shard_id=stored.shard_id,
        type=stored.kind,
        state=stored.state,  # type: ignore[arg-type]
        namespace=task.namespace,
        activity=None if stored.damage else activity_ref(task.activity),
        worker_instance_key=task.worker,
        lease_epoch=task.epoch,
        attempts=stored.attempts,
        last_error=stored.damage or stored.last_error,
        create_time=timestamp(stored.created_wall_ms),
    )
    if stored.finished_wall_ms is not None:
        message.finish_time.CopyFrom(timestamp(stored.finished_wall_ms))
    return message


def node_message(row: NodeRow, shards: int) -> admin_pb2.Node:
    return admin_pb2.Node(
        node_id=row.node_id,
        kind=row.kind,
        state=row.state,  # type: ignore[arg-type]
        address=row.address,
        host_name=row.host,
        process_id=row.process_id,
        version=row.version,
        start_time=timestamp(row.started_wall_ms),
        lease=duration(row.lease_ms),
        renew_time=timestamp(row.renewed_wall_ms),
        shards=shards,
    )
