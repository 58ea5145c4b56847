"""ScheduleService: the mapping between messages and values."""

from __future__ import annotations

from liveness.domain.calendar import (
    EXPRESSION_BYTES_MAX,
    INTERVAL_MS_MIN,
    TIME_ZONE_BYTES_MAX,
    CalendarError,
    check_time_zone,
    parse_cron,
)
from liveness.domain.errors import InvalidField
from liveness.domain.events import FiredActivity, MissedPolicy, OverlapPolicy, ScheduleSpec
from liveness.domain.schedule import (
    SCHEDULE_ID_BYTES_MAX,
    Firing,
    Schedule,
    ScheduleKey,
    activity_key,
    next_ticks,
)
from liveness.server import activity_wire
from liveness.server.validation import duration_ms, one_line, optional_identifier, require_identifier
from liveness.server.wire import duration, timestamp
from liveness.v1 import activity_pb2
from liveness.v1 import schedule_service_pb2 as pb

INPUT_BYTES_MAX = 64 * 1024
"""Every schedule is kept in memory."""
NOTE_BYTES_MAX = 1_024
TRIGGER_ID_BYTES_MAX = 100
NEXT_TIMES_MAX = 5
WINDOW_MS_DEFAULT = 60_000

_MISSED = {
    pb.MISSED_POLICY_UNSPECIFIED: MissedPolicy.ONCE,
    **{pb.MissedPolicy.Value(f"MISSED_POLICY_{policy.name}"): policy for policy in MissedPolicy},
}
_OVERLAP = {
    pb.OVERLAP_POLICY_UNSPECIFIED: OverlapPolicy.ALLOW,
    **{pb.OverlapPolicy.Value(f"OVERLAP_POLICY_{policy.name}"): policy for policy in OverlapPolicy},
}


# -- from messages


def schedule_key(namespace: str, schedule_id: str) -> ScheduleKey:
    return ScheduleKey(
        require_identifier("namespace", namespace),
        _at_most("schedule_id", require_identifier("schedule_id", schedule_id), SCHEDULE_ID_BYTES_MAX),
    )


def schedule_prefix(prefix: str) -> str:
    return _at_most("prefix", optional_identifier("prefix", prefix), SCHEDULE_ID_BYTES_MAX)


def trigger_id(value: str) -> str:
    return _at_most("trigger_id", optional_identifier("trigger_id", value), TRIGGER_ID_BYTES_MAX)


def _at_most(field: str, value: str, bytes_max: int) -> str:
    if len(value.encode()) > bytes_max:
        raise InvalidField(field=field, rule=f"must be at most {bytes_max} bytes of UTF-8")
    return value


def schedule_spec(message: pb.ScheduleSpec) -> ScheduleSpec:
    if message.missed not in _MISSED:
        raise InvalidField(field="spec.missed", rule="is not one of the known values")
    if message.overlap not in _OVERLAP:
        raise InvalidField(field="spec.overlap", rule="is not one of the known values")
    cron = one_line("spec.cron", message.cron, EXPRESSION_BYTES_MAX)
    time_zone = one_line("spec.time_zone", message.time_zone, TIME_ZONE_BYTES_MAX)
    every_ms = offset_ms = 0
    if bool(cron) == message.HasField("every"):
        raise InvalidField(field="spec.cron", rule="or spec.every must be set, and only one of them")
    if cron:
        _check_cron(cron, time_zone or "UTC")
        if message.HasField("offset"):
            raise InvalidField(field="spec.offset", rule="goes with spec.every")
    else:
        every_ms = duration_ms("spec.every", message.every)
        if every_ms < INTERVAL_MS_MIN:
            raise InvalidField(field="spec.every", rule="must be at least 1 s")
        if time_zone:
            raise InvalidField(field="spec.time_zone", rule="goes with spec.cron")
        if message.HasField("offset"):
            offset_ms = duration_ms("spec.offset", message.offset, allow_zero=True)
            if offset_ms >= every_ms:
                raise InvalidField(field="spec.offset", rule="must be less than spec.every")
    window_ms = WINDOW_MS_DEFAULT
    if message.HasField("start_window"):
        window_ms = duration_ms("spec.start_window", message.start_window)
    return ScheduleSpec(
        activity=_fired_activity(message.activity),
        cron=cron,
        time_zone=(time_zone or "UTC") if cron else "",
        every_ms=every_ms,
        offset_ms=offset_ms,
        missed=_MISSED[message.missed],
        overlap=_OVERLAP[message.overlap],
        window_ms=window_ms,
        note=_at_most("spec.note", one_line("spec.note", message.note, NOTE_BYTES_MAX), NOTE_BYTES_MAX),
    )


def _check_cron(cron: str, time_zone: str) -> None:
    try:
        parse_cron(cron)
    except CalendarError as error:
        raise InvalidField(field="spec.cron", rule=str(error)) from error
    try:
        check_time_zone(time_zone)
    except CalendarError as error:
        raise InvalidField(field="spec.time_zone", rule=str(error)) from error


def _fired_activity(message: pb.ScheduledActivity) -> FiredActivity:
    if len(message.input) > INPUT_BYTES_MAX:
        raise InvalidField(field="spec.activity.input", rule=f"must be at most {INPUT_BYTES_MAX} bytes")
    # The rules are those of ScheduleActivity.
    spec = activity_wire.spec(
        activity_pb2.ScheduleActivityRequest(
            activity_type=message.activity_type,
            input=message.input,
            input_encoding=message.input_encoding,
            retry_policy=message.retry_policy,
            timeouts=message.timeouts,
            priority=message.priority,
        ),
        require_identifier("spec.activity.task_queue", message.task_queue),
    )
    return FiredActivity(
        spec.type, spec.task_queue, spec.input, spec.input_encoding, spec.retry, spec.limits, spec.priority
    )


# -- to messages


def schedule_message(
    key: ScheduleKey, schedule: Schedule, shard_id: int, *, in_full: bool = True
) -> pb.Schedule:
    """`in_full`: with the input, the next times, and all firings that are remembered."""
    message = pb.Schedule(
        namespace=key.namespace,
        schedule_id=key.schedule_id,
        spec=_spec_message(schedule.spec, in_full=in_full),
        paused=schedule.paused,
        pause_reason=schedule.pause_reason,
        create_time=timestamp(schedule.created_ms),
        update_time=timestamp(schedule.updated_ms),
        fired=schedule.fired,
        missed=schedule.missed,
        overlapped=schedule.overlapped,
        shard_id=shard_id,
    )
    if schedule.due_ms:
        message.next_time.CopyFrom(timestamp(schedule.due_ms))
    firings = schedule.firings[::-1]
    if in_full:
        message.next_times.extend(map(timestamp, next_ticks(schedule, NEXT_TIMES_MAX)))
    else:
        firings = firings[:1]
    message.firings.extend(_firing_message(key, schedule, firing) for firing in firings)
    return message


def _firing_message(key: ScheduleKey, schedule: Schedule, firing: Firing) -> pb.ScheduleFiring:
    id = activity_key(key, schedule, firing.activity_id).id
    return pb.ScheduleFiring(
        id=activity_pb2.ActivityId(**id._asdict()),
        tick_time=timestamp(firing.tick_ms) if firing.tick_ms else None,
        fire_time=timestamp(firing.fired_ms),
    )


def _spec_message(spec: ScheduleSpec, *, in_full: bool) -> pb.ScheduleSpec:
    fired = spec.activity
    message = pb.ScheduleSpec(
        activity=pb.ScheduledActivity(
            activity_type=fired.type,
            task_queue=fired.task_queue,
            input=fired.input if in_full else b"",
            input_encoding=fired.input_encoding,
            retry_policy=activity_wire.retry_message(fired.retry),
            timeouts=activity_wire.timeouts_message(fired.limits),
            priority=activity_wire.priority_message(fired.priority),
        ),
        cron=spec.cron,
        time_zone=spec.time_zone,
        missed=pb.MissedPolicy.Value(f"MISSED_POLICY_{spec.missed.name}"),
        overlap=pb.OverlapPolicy.Value(f"OVERLAP_POLICY_{spec.overlap.name}"),
        start_window=duration(spec.window_ms),
        note=spec.note,
    )
    if spec.every_ms:
        message.every.CopyFrom(duration(spec.every_ms))
    if spec.offset_ms:
        message.offset.CopyFrom(duration(spec.offset_ms))
    return message
