"""The only mapping between messages about registered components and domain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration

from liveness.domain.commands import Heartbeat
from liveness.domain.errors import InvalidField
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.registry import (
    DEFAULT_STATUS,
    KIND,
    OFFLINE,
    RESERVED_KINDS,
    RUNTIME_BYTES_MAX,
    SESSION_BYTES_MAX,
    STATUS_BYTES_MAX,
    URI_BYTES_MAX,
    Entry,
    Replica,
    ReplicaPolicy,
    kind_of,
    live_replicas,
    name_of,
)
from liveness.domain.registry_decider import Registration, current_status, is_stale
from liveness.domain.worker import Worker, WorkerState
from liveness.server import wire
from liveness.server.validation import (
    check_count,
    duration_ms,
    one_line,
    optional_identifier,
    page_size,
    require_identifier,
    text,
)
from liveness.v1 import registry_pb2, worker_pb2
from liveness.v1 import registry_service_pb2 as pb

FILTERS_MAX = 100
EXAMINE_US = 2
LABELS_PER_US, JSON_BYTES_PER_US = 5, 10
NEXT_HEARTBEAT_SHARE = 1 / 3
_POLICIES = {0: ReplicaPolicy.SHOW, **{int(policy): policy for policy in ReplicaPolicy}}


# -- from messages


def entry_key(namespace: str, instance_key: str) -> WorkerKey:
    require_identifier("namespace", namespace)
    require_identifier("worker_instance_key", instance_key)
    kind = kind_of(instance_key)
    if not KIND.fullmatch(kind) or not name_of(instance_key):
        raise InvalidField(
            field="worker_instance_key",
            rule="must be KIND:NAME with a kind of a-z, 0-9, _ and -, such as worker_pool:images",
        )
    if kind in RESERVED_KINDS:
        raise InvalidField(
            field="worker_instance_key",
            rule=f"must have another kind than {kind}, which belongs to supervised processes",
        )
    return WorkerKey(namespace, instance_key)


def registration(
    request: pb.RegisterRequest, policy: Policy, known: Worker | None, principal: str
) -> Registration:
    on_replica = _POLICIES.get(int(request.on_replica))
    if on_replica is None:
        raise InvalidField(field="on_replica", rule="must be one of the known values")
    capacity = request.capacity if request.HasField("capacity") else None
    if capacity is not None and capacity < 0:
        raise InvalidField(field="capacity", rule="must not be negative")
    beat = worker_pb2.WorkerHeartbeat(
        worker_instance_key=request.worker_instance_key,
        session_id=registered_session(request, principal),
        labels=request.labels,
        capabilities=request.capabilities,
        host_name=request.host_name,
        process_id=request.process_id,
        task_queue=request.task_queue,
        build_id=request.build_id,
    )
    return Registration(
        beat=_heartbeat(beat, (request.sequence, 0, 0), policy, known, principal),
        uri=one_line("uri", request.uri, URI_BYTES_MAX),
        status=_status(request.status) or DEFAULT_STATUS,
        capacity=capacity,
        runtime=_runtime(request.runtime_json),
        interval_ms=_positive_ms(
            "expected_interval", request.expected_interval, is_set=request.HasField("expected_interval")
        ),
        lease_ms=_positive_ms(
            "lease_duration", request.lease_duration, is_set=request.HasField("lease_duration")
        ),
        on_replica=on_replica,
    )


def registered_session(request: pb.RegisterRequest, principal: str) -> str:
    if request.session_id:
        return session("session_id", request.session_id)
    if request.host_name and request.process_id:
        return session("host_name and process_id", f"{request.host_name}:{request.process_id}")
    if principal:
        raise InvalidField(field="session_id", rule="must be set, or host_name and process_id")
    return ""


def session(field: str, value: str) -> str:
    optional_identifier(field, value)
    # A session that the server has issued may have the epoch at its end.
    if len(value.encode()) > SESSION_BYTES_MAX + 21:
        raise InvalidField(field=field, rule=f"must be at most {SESSION_BYTES_MAX} bytes of UTF-8")
    return value


def heartbeat(
    request: pb.HeartbeatRequest, policy: Policy, known: Worker | None, principal: str
) -> tuple[Heartbeat, str]:
    """Return the heartbeat and the status, which is empty if it is as before."""
    beat = worker_pb2.WorkerHeartbeat(
        worker_instance_key=request.worker_instance_key,
        session_id=session("session_id", request.session_id),
        last_error=text("last_error", request.last_error),
    )
    counters = request.sequence, request.successes, request.errors
    return _heartbeat(beat, counters, policy, known, principal), _status(request.status)


def _heartbeat(
    beat: worker_pb2.WorkerHeartbeat,
    counters: tuple[int, int, int],
    policy: Policy,
    known: Worker | None,
    principal: str,
) -> Heartbeat:
    try:
        return wire.heartbeat(beat, counters, policy, known, principal)
    except InvalidField as error:
        field = error.field.removeprefix("heartbeat.").replace("heartbeat", "labels and capabilities")
        raise InvalidField(field=field, rule=error.rule) from None


def _status(value: str) -> str:
    one_line("status", value, STATUS_BYTES_MAX)
    if value == OFFLINE:
        raise InvalidField(field="status", rule="must not be offline; deregister the component instead")
    return value


def _runtime(value: str) -> str:
    if len(value.encode()) > RUNTIME_BYTES_MAX:
        raise InvalidField(field="runtime_json", rule=f"must be at most {RUNTIME_BYTES_MAX} bytes")
    if value and runtime_members(value) is None:
        raise InvalidField(field="runtime_json", rule="must be a JSON object")
    return value


def runtime_members(value: str) -> dict[str, Any] | None:
    """The members of a JSON object; None if it is none."""
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _positive_ms(field: str, value: Duration, *, is_set: bool) -> int:
    return duration_ms(field, value) if is_set else 0


class EntryFilter(NamedTuple):
    """All conditions hold together; an empty one always holds."""

    kind: str
    status: str
    labels: tuple[tuple[str, str], ...]
    runtime: tuple[tuple[str, str], ...]
    stale: bool

    def cost_us(self, worker: Worker, entry: Entry) -> int:
        """The estimated processor time of `matches`, in microseconds."""
        cost_us = EXAMINE_US
        if self.labels:
            cost_us += len(worker.shared.profile.labels) // LABELS_PER_US
        if self.runtime:
            cost_us += len(entry.runtime) // JSON_BYTES_PER_US
        return cost_us

    def matches(self, worker: Worker, entry: Entry, now_ms: int) -> bool:
        if self.status and current_status(worker, entry) != self.status:
            return False
        if self.stale and not is_stale(worker, entry, now_ms):
            return False
        if self.labels and not set(self.labels) <= set(worker.shared.profile.labels):
            return False
        if not self.runtime:
            return True
        members = runtime_members(entry.runtime) or {}
        return all(name in members and _as_text(members[name]) == value for name, value in self.runtime)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def entry_filter(request: pb.ListEntriesRequest) -> tuple[EntryFilter, int]:
    """The filter, and the size of a page."""
    if request.kind and not KIND.fullmatch(request.kind):
        raise InvalidField(field="kind", rule="must be of a-z, 0-9, _ and -, such as worker_pool")
    return EntryFilter(
        kind=request.kind,
        status=one_line("status", request.status, STATUS_BYTES_MAX),
        labels=_conditions("labels", request.labels),
        runtime=_conditions("runtime", request.runtime),
        stale=request.stale,
    ), page_size(request.page_size)


def _conditions(field: str, values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    check_count(field, values, FILTERS_MAX)
    return tuple(sorted(values.items()))


# -- to messages


def next_heartbeat_after(worker: Worker) -> Duration:
    """A component that said how often it will be heard is expected then."""
    entry = worker.standing.entry
    third_ms = int(worker.granted_ms * NEXT_HEARTBEAT_SHARE)
    return wire.duration(min(third_ms, entry.interval_ms) if entry and entry.interval_ms else third_ms)


def entry_message(
    key: WorkerKey, worker: Worker, entry: Entry, now_ms: int, wall_ms: int
) -> registry_pb2.RegistryEntry:
    """`now_ms` on the shard's clock and `wall_ms` are the same moment."""
    profile = worker.profile
    seen_ms = worker.renewed_wall_ms
    message = registry_pb2.RegistryEntry(
        namespace=key.namespace,
        kind=kind_of(key.instance_key),
        name=name_of(key.instance_key),
        worker_instance_key=key.instance_key,
        uri=entry.uri,
        status=current_status(worker, entry),
        labels=dict(profile.labels),
        capabilities=profile.capabilities,
        capacity=entry.capacity,
        runtime_json=entry.runtime,
        expected_interval=wire.duration(entry.interval_ms) if entry.interval_ms else None,
        stale=is_stale(worker, entry, now_ms),
        first_seen_time=wire.timestamp(entry.first_seen_wall_ms),
        last_seen_time=wire.timestamp(wall_ms - now_ms + worker.renewed_ms if seen_ms is None else seen_ms),
        state=worker.state,  # type: ignore[arg-type]
        lease_epoch=worker.epoch,
        host_name=profile.host_name,
        process_id=profile.process_id,
        replicas=[_replica_message(each) for each in live_replicas(entry, worker.granted_ms, now_ms)],
        successes=worker.successes,
        errors=worker.errors,
        last_error=worker.last_error,
        bound_activity_count=len(worker.bindings),
        heartbeat_count=worker.heartbeats,
    )
    if worker.standing.last_error_wall_ms:
        message.last_error_time.CopyFrom(wire.timestamp(worker.standing.last_error_wall_ms))
    if worker.state is WorkerState.ACTIVE:
        message.lease_deadline.CopyFrom(wire.timestamp(wall_ms - now_ms + worker.deadline_ms))
    return message


def _replica_message(replica: Replica) -> registry_pb2.Replica:
    return registry_pb2.Replica(
        session_id=replica.session_id,
        host_name=replica.host_name,
        process_id=replica.process_id,
        uri=replica.uri,
        first_seen_time=wire.timestamp(replica.first_seen_wall_ms),
        last_seen_time=wire.timestamp(replica.last_seen_wall_ms),
    )
