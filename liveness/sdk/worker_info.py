"""Workers, their deaths and events about them, as the server sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar

from google.protobuf.message import Message

from liveness.sdk.errors import InvalidArgument
from liveness.sdk.values import (
    ActivityRef,
    ActivityState,
    duration_to_ms,
    ref_from_proto,
    state_from_proto,
    time_from_proto,
)
from liveness.v1 import death_pb2, event_pb2, service_pb2, worker_pb2

E = TypeVar("E", bound=StrEnum)


class WorkerState(StrEnum):
    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    CLEANED_UP = "CLEANED_UP"
    UNKNOWN = "UNKNOWN"
    """A state that this SDK does not know, from a newer server."""


class WorkerStatus(StrEnum):
    """What a worker says about itself; it decides nothing."""

    UNSPECIFIED = "UNSPECIFIED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    UNKNOWN = "UNKNOWN"


class InactiveReason(StrEnum):
    """Why a worker left ACTIVE."""

    UNSPECIFIED = "UNSPECIFIED"
    """It is ACTIVE, or the reason is not known."""
    LEASE_EXPIRED = "LEASE_EXPIRED"
    SHUTDOWN = "SHUTDOWN"
    """It said goodbye."""
    FORCED = "FORCED"
    """An operator ended its lease."""
    DISCONNECTED = "DISCONNECTED"
    DRAINED = "DRAINED"
    PROCESS_EXITED = "PROCESS_EXITED"
    UNKNOWN = "UNKNOWN"


DEATHS = frozenset({InactiveReason.LEASE_EXPIRED, InactiveReason.DISCONNECTED, InactiveReason.PROCESS_EXITED})
"""The reasons that are a death: nobody had asked the worker to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as the server sees it."""

    key: str
    """Its instance key."""
    namespace: str
    state: WorkerState
    status: WorkerStatus
    inactive_reason: InactiveReason
    inactive_detail: str
    paused: bool
    """Handed nothing new: by an order to this worker, or to its whole namespace."""
    draining: bool
    attached: bool
    """A stream of it is open."""
    suspect: bool
    """Its stream broke, and its disconnect grace runs."""
    lease: float
    """Seconds."""
    lease_epoch: int
    lease_deadline: datetime | None
    """While ACTIVE; an estimate for people."""
    last_heartbeat: datetime | None
    task_queue: str
    build_id: str
    host: str
    process_id: str
    identity: str
    session_id: str
    started: datetime | None
    current_job: str
    labels: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    heartbeats: int = 0
    """Since registration, as are the next ones."""
    successes: int = 0
    errors: int = 0
    last_error: str = ""
    activity_count: int = 0
    activities: tuple[ActivityRef, ...] = ()
    """What it holds; empty in lists."""

    @property
    def died(self) -> bool:
        """Whether it is INACTIVE because its lease or its process ended, rather than by a goodbye, a drain or an operator."""
        return self.state is WorkerState.INACTIVE and self.inactive_reason in DEATHS

    @classmethod
    def from_proto(cls, message: worker_pb2.Worker) -> Self:
        return cls(
            key=message.worker_instance_key,
            namespace=message.namespace,
            state=_member(WorkerState, worker_pb2.WorkerState, message.state, "WORKER_STATE_"),
            status=_member(WorkerStatus, worker_pb2.WorkerStatus, message.status, "WORKER_STATUS_"),
            inactive_reason=_reason(message.inactive_reason),
            inactive_detail=message.inactive_detail,
            paused=message.paused,
            draining=message.draining,
            attached=message.attached,
            suspect=message.suspect,
            lease=duration_to_ms(message.granted_lease_duration) / 1_000,
            lease_epoch=message.lease_epoch,
            lease_deadline=_time(message, "lease_deadline"),
            last_heartbeat=_time(message, "last_heartbeat_time"),
            task_queue=message.task_queue,
            build_id=message.build_id,
            host=message.host_name,
            process_id=message.process_id,
            identity=message.worker_identity,
            session_id=message.session_id,
            started=_time(message, "start_time"),
            current_job=message.current_job,
            labels=dict(message.labels),
            capabilities=tuple(message.capabilities),
            heartbeats=message.heartbeat_count,
            successes=message.successes,
            errors=message.errors,
            last_error=message.last_error,
            activity_count=message.bound_activity_count,
            activities=tuple(map(ref_from_proto, message.bound_activities)),
        )


class MovedActivity(NamedTuple):
    """An activity that a dead worker held, and where it is now."""

    ref: ActivityRef
    """With the attempt that the dead worker held."""
    state: ActivityState | None
    """None if the activity is not kept any more."""
    attempt: int
    """The attempt that is held now, or comes next."""
    worker: str
    """Who holds it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Why a worker was declared dead, and what became of its work: its death certificate."""

    worker: str
    cause: InactiveReason
    detail: str
    time: datetime
    last_heartbeat: datetime | None
    silence: float | None
    """Seconds for which nothing was heard, counted while the server listened. None if silence was not the cause."""
    lease: float
    lease_epoch: int
    host: str
    build_id: str
    task_queue: str
    others_on_host: int
    """Workers of the same host that died within a minute before or after."""
    others_of_build: int
    others_in_namespace: int
    was_alive: bool
    """Whether the same session came back: then the worker had been alive."""
    came_back: datetime | None
    activity_count: int
    activities: tuple[MovedActivity, ...]
    """At most 100."""

    def __str__(self) -> str:
        return f"{self.worker} was declared dead at {self.time:%Y-%m-%d %H:%M:%S} UTC: {self.detail or self.cause}"

    @classmethod
    def from_proto(cls, message: death_pb2.DeathCertificate) -> Self:
        has_silence = message.HasField("silence")
        return cls(
            worker=message.worker_instance_key,
            cause=_reason(message.cause),
            detail=message.detail,
            time=time_from_proto(message.time),
            last_heartbeat=_time(message, "last_heartbeat_time"),
            silence=duration_to_ms(message.silence) / 1_000 if has_silence else None,
            lease=duration_to_ms(message.granted_lease_duration) / 1_000,
            lease_epoch=message.lease_epoch,
            host=message.host_name,
            build_id=message.build_id,
            task_queue=message.task_queue,
            others_on_host=message.company.same_host,
            others_of_build=message.company.same_build,
            others_in_namespace=message.company.same_namespace,
            was_alive=message.verdict == death_pb2.VERDICT_FALSE,
            came_back=_time(message, "refuted_time"),
            activity_count=message.activity_count,
            activities=tuple(
                MovedActivity(
                    ref_from_proto(moved.activity),
                    state_from_proto(moved.state) if moved.state else None,
                    moved.attempt,
                    moved.worker_instance_key,
                )
                for moved in message.activities
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessEvent:
    """One committed fact, as the log holds it."""

    type: str
    """Past-tense name of the fact, for example WorkerRegistered or LeaseExpired."""
    namespace: str
    worker: str
    """Its instance key; empty for events that are not about a worker."""
    workflow_id: str
    """Set for events about an activity."""
    time: datetime
    data: Mapping[str, Any]
    """The event's fields. New ones may appear."""
    shard: int
    sequence: int
    """Rises within its shard."""

    @classmethod
    def from_proto(cls, message: event_pb2.Event) -> Self:
        return cls(
            type=message.type,
            namespace=message.namespace,
            worker=message.worker_instance_key,
            workflow_id=message.workflow_id,
            time=time_from_proto(message.time),
            data=json.loads(message.data_json or "{}"),
            shard=message.shard_id,
            sequence=message.sequence,
        )


def worker_filter(
    states: Sequence[WorkerState], task_queue: str, build_id: str, host: str, prefix: str, query: str
) -> service_pb2.WorkerFilter:
    try:
        numbers = [worker_pb2.WorkerState.Value(f"WORKER_STATE_{state}") for state in states]
    except ValueError:
        raise InvalidArgument(detail=f"workers have no state {', '.join(states)}.") from None
    return service_pb2.WorkerFilter(
        states=numbers,
        task_queue=task_queue,
        build_id=build_id,
        host_name=host,
        key_prefix=prefix,
        query=query,
    )


def _member(kind: type[E], numbers: Any, number: int, prefix: str) -> E:
    try:
        return kind(numbers.Name(number).removeprefix(prefix))
    except ValueError:
        return kind("UNKNOWN")


def _reason(number: int) -> InactiveReason:
    return _member(InactiveReason, worker_pb2.InactiveReason, number, "INACTIVE_REASON_")


def _time(message: Message, name: str) -> datetime | None:
    return time_from_proto(getattr(message, name)) if message.HasField(name) else None
