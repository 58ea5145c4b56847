"""Schedules: activities that are scheduled again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Self

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.sdk.converter import Converter, encode
from liveness.sdk.errors import LivenessSdkError, ScheduleExists, ScheduleUnknown
from liveness.sdk.rpc_failures import RpcFailure, client_error
from liveness.sdk.timeouts import Priority, Timeouts, priority_to_proto, timeouts_to_proto
from liveness.sdk.values import (
    ActivityRef,
    RetryPolicy,
    duration_to_ms,
    retry_policy_to_proto,
    time_from_proto,
    to_duration,
)
from liveness.v1 import activity_pb2
from liveness.v1 import schedule_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to schedule which activity. Say either `cron` or `every`."""

    type: str
    task_queue: str
    cron: str = ""
    """Minute, hour, day of the month, month, day of the week: "30 2 * * mon-fri"; or "@daily" and the like."""
    time_zone: str = ""
    """Of `cron`, such as "Europe/Berlin"; UTC if empty."""
    every: float | timedelta | None = None
    """Seconds between two ticks, which are at multiples of it since 1970."""
    offset: float | timedelta | None = None
    """Moves these ticks."""
    input: object = None
    retry: RetryPolicy | None = None
    timeouts: Timeouts | None = None
    priority: Priority | None = None
    missed: Literal["skip", "once", "all"] = "once"
    """What happens to ticks that nobody fired in time: dropped, the last fires for all, or each of the last 100 fires."""
    overlap: Literal["allow", "skip"] = "allow"
    """What happens to a tick while the activity before is not finished: it fires all the same, or is dropped."""
    start_window: float | timedelta | None = None
    """A tick that is later than this was missed; None: 60 s."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFiring:
    activity: ActivityRef
    tick: datetime | None
    """The time that it fired for; None if somebody triggered it."""
    fired: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule as the server sees it."""

    id: str
    type: str
    task_queue: str
    cron: str
    time_zone: str
    every: timedelta | None
    missed_policy: str
    overlap_policy: str
    note: str
    paused: bool
    pause_reason: str
    created: datetime
    next: datetime | None
    """None if it is paused or never fires again."""
    next_times: tuple[datetime, ...]
    """The next ones; of `get` only."""
    firings: tuple[ScheduleFiring, ...]
    """The last ones, newest first; of `list` only the last one."""
    fired: int
    missed: int
    overlapped: int
    """How many ticks were dropped because the activity before was not finished."""

    @classmethod
    def from_proto(cls, message: pb.Schedule) -> Self:
        spec = message.spec
        return cls(
            id=message.schedule_id,
            type=spec.activity.activity_type,
            task_queue=spec.activity.task_queue,
            cron=spec.cron,
            time_zone=spec.time_zone,
            every=timedelta(milliseconds=duration_to_ms(spec.every)) if spec.HasField("every") else None,
            missed_policy=_word(pb.MissedPolicy, spec.missed, "MISSED_POLICY_"),
            overlap_policy=_word(pb.OverlapPolicy, spec.overlap, "OVERLAP_POLICY_"),
            note=spec.note,
            paused=message.paused,
            pause_reason=message.pause_reason,
            created=time_from_proto(message.create_time),
            next=_time(message.next_time) if message.HasField("next_time") else None,
            next_times=tuple(map(_time, message.next_times)),
            firings=tuple(
                ScheduleFiring(
                    activity=activity_ref(firing.id),
                    tick=_time(firing.tick_time) if firing.HasField("tick_time") else None,
                    fired=_time(firing.fire_time),
                )
                for firing in message.firings
            ),
            fired=message.fired,
            missed=message.missed,
            overlapped=message.overlapped,
        )


def _time(stamp: Timestamp) -> datetime:
    return time_from_proto(stamp)


def _word(kind: object, number: int, prefix: str) -> str:
    known = kind.DESCRIPTOR.values_by_number  # type: ignore[attr-defined]
    return known[number].name.removeprefix(prefix).lower() if number in known else str(number)


def activity_ref(id: activity_pb2.ActivityId) -> ActivityRef:
    return ActivityRef(id.workflow_id, id.run_id, id.activity_id)


def schedule_to_proto(converter: Converter, id: str, schedule: Schedule) -> pb.ScheduleSpec:
    payload = encode(converter, f"the input of schedule {id}", schedule.input)
    return pb.ScheduleSpec(
        activity=pb.ScheduledActivity(
            activity_type=schedule.type,
            task_queue=schedule.task_queue,
            input=payload.data,
            input_encoding=payload.encoding,
            retry_policy=retry_policy_to_proto(schedule.retry),
            timeouts=timeouts_to_proto(schedule.timeouts),
            priority=priority_to_proto(schedule.priority),
        ),
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        every=None if schedule.every is None else to_duration(schedule.every),
        offset=None if schedule.offset is None else to_duration(schedule.offset),
        missed=pb.MissedPolicy.Value(f"MISSED_POLICY_{schedule.missed.upper()}"),
        overlap=pb.OverlapPolicy.Value(f"OVERLAP_POLICY_{schedule.overlap.upper()}"),
        start_window=None if schedule.start_window is None else to_duration(schedule.start_window),
        note=schedule.note,
    )


def schedule_error(
    rpc_failure: RpcFailure, call: str, id: str, *, address: str, namespace: str
) -> LivenessSdkError:
    if rpc_failure.reason == "SCHEDULE_NOT_FOUND":
        return ScheduleUnknown(schedule=id, namespace=namespace, detail=str(rpc_failure))
    if rpc_failure.reason == "SCHEDULE_EXISTS":
        return ScheduleExists(schedule=id, namespace=namespace, detail=str(rpc_failure))
    return client_error(rpc_failure, call, address=address, namespace=namespace, worker="")
