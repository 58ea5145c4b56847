"""Schedules: decide and evolve. A schedule lives on the shard of the workflow whose activities it schedules, so that one commit
contains a firing and its activity.

All times are wall times: a schedule promises something to people.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from liveness.domain.calendar import next_cron_ms, next_interval_ms
from liveness.domain.errors import ScheduleExists, ScheduleNotFound
from liveness.domain.events import (
    MissedPolicy,
    OverlapPolicy,
    ScheduleDeleted,
    ScheduleEvent,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSaved,
    ScheduleSpec,
    ScheduleTicksDropped,
)
from liveness.domain.keys import ActivityKey

SCHEDULE_ID_BYTES_MAX = 200
CATCH_UP_MAX = 100
"""How many missed ticks are fired at most with `MissedPolicy.ALL`; the oldest are dropped."""
TICKS_PER_LOOK_MAX = 1_000
RECENT_FIRINGS_KEPT = 10


class ScheduleKey(NamedTuple):
    namespace: str
    schedule_id: str


class Firing(NamedTuple):
    activity_id: str
    tick_ms: int
    """0 if an operator triggered it."""
    fired_ms: int


class Schedule(NamedTuple):
    spec: ScheduleSpec
    created_ms: int
    updated_ms: int
    next_ms: int
    """When it fires next; 0 for never."""
    paused: bool = False
    pause_reason: str = ""
    last_tick_ms: int = 0
    """The latest tick that was ever fired; 0 if none was."""
    fired: int = 0
    missed: int = 0
    overlapped: int = 0
    firings: tuple[Firing, ...] = ()
    """The last ones, oldest first."""

    @property
    def due_ms(self) -> int:
        """When somebody has to look at it; 0 for never."""
        return 0 if self.paused else self.next_ms


def workflow_of(schedule_id: str) -> str:
    """The workflow of all activities of the schedule. It chooses the shard of both."""
    return f"schedule:{schedule_id}"


def activity_key(key: ScheduleKey, schedule: Schedule, activity_id: str) -> ActivityKey:
    # The run tells schedules of the same name apart, of which one was deleted before the other was created.
    run_id = format_moment(schedule.created_ms)
    return ActivityKey(key.namespace, workflow_of(key.schedule_id), run_id, activity_id)


def format_moment(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{ms % 1_000:03}Z" if ms % 1_000 else f"{moment}Z"


def next_tick_ms(spec: ScheduleSpec, after_ms: int) -> int:
    if spec.every_ms:
        return next_interval_ms(spec.every_ms, spec.offset_ms, after_ms)
    return next_cron_ms(spec.cron, spec.time_zone, after_ms)


def next_ticks(schedule: Schedule, count: int) -> list[int]:
    """The times of the next firings, if nothing changes."""
    found: list[int] = []
    tick_ms = schedule.due_ms
    while tick_ms and len(found) < count:
        found.append(tick_ms)
        tick_ms = next_tick_ms(schedule.spec, tick_ms)
    return found


# -- decide


def create(
    key: ScheduleKey, known: Schedule | None, spec: ScheduleSpec, now_ms: int, by: str
) -> ScheduleEvents:
    """The same schedule again changes nothing."""
    if known is None:
        return (_saved(key, spec, now_ms, by),)
    if known.spec != spec:
        raise ScheduleExists(schedule=key.schedule_id, namespace=key.namespace)
    return ()


def update(
    key: ScheduleKey, known: Schedule | None, spec: ScheduleSpec, now_ms: int, by: str
) -> ScheduleEvents:
    if known_schedule(key, known).spec == spec:
        return ()
    return (_saved(key, spec, now_ms, by),)


def _saved(key: ScheduleKey, spec: ScheduleSpec, now_ms: int, by: str) -> ScheduleSaved:
    return ScheduleSaved(schedule_id=key.schedule_id, spec=spec, next_ms=next_tick_ms(spec, now_ms), by=by)


def pause(key: ScheduleKey, known: Schedule | None, reason: str, by: str) -> ScheduleEvents:
    if known_schedule(key, known).paused:
        return ()
    return (SchedulePaused(schedule_id=key.schedule_id, reason=reason, by=by),)


def resume(key: ScheduleKey, known: Schedule | None, reason: str, now_ms: int, by: str) -> ScheduleEvents:
    """Ticks that passed meanwhile are neither fired nor missed."""
    schedule = known_schedule(key, known)
    if not schedule.paused:
        return ()
    next_ms = next_tick_ms(schedule.spec, now_ms)
    return (ScheduleResumed(schedule_id=key.schedule_id, next_ms=next_ms, reason=reason, by=by),)


def delete(key: ScheduleKey, known: Schedule | None, reason: str, by: str) -> ScheduleEvents:
    known_schedule(key, known)
    return (ScheduleDeleted(schedule_id=key.schedule_id, reason=reason, by=by),)


def trigger(key: ScheduleKey, schedule: Schedule, trigger_id: str, by: str) -> ScheduleFired:
    activity_id = f"trigger-{trigger_id}" if trigger_id else f"triggered-{schedule.fired + 1}"
    return ScheduleFired(
        schedule_id=key.schedule_id, activity_id=activity_id, tick_ms=0, next_ms=schedule.next_ms, by=by
    )


class Look(NamedTuple):
    """What is due of a schedule."""

    dropped: ScheduleTicksDropped | None
    """Happens before the firings."""
    fire: tuple[int, ...]
    """Ticks, oldest first."""


NOTHING_DUE = Look(None, ())


def look(key: ScheduleKey, schedule: Schedule, now_ms: int) -> Look:
    """Decide about the ticks that have passed. Of very many, the next looks see the rest.

    The last tick is fired unless it is late by more than the window. It and all before it are missed otherwise: they are dropped, or
    the last one is fired for all of them, or each is."""
    spec = schedule.spec
    ticks: list[int] = []
    tick_ms = schedule.due_ms
    while 0 < tick_ms <= now_ms and len(ticks) < TICKS_PER_LOOK_MAX:
        ticks.append(tick_ms)
        tick_ms = next_tick_ms(spec, tick_ms)
    if not ticks:
        return NOTHING_DUE
    has_more = 0 < tick_ms <= now_ms
    keep = 1
    if spec.missed is MissedPolicy.ALL:
        keep = CATCH_UP_MAX
    elif spec.missed is MissedPolicy.SKIP and now_ms - ticks[-1] > spec.window_ms:
        keep = 0
    drop = max(len(ticks) - keep, 0)
    # Where more follow, those are the ones that may be kept.
    fire = ticks[drop:] if not has_more else []
    if not drop:
        return Look(None, tuple(fire))
    next_ms = ticks[drop] if drop < len(ticks) else tick_ms
    dropped = ScheduleTicksDropped(
        schedule_id=key.schedule_id, count=drop, first_ms=ticks[0], last_ms=ticks[drop - 1], overlapping=False,
        next_ms=next_ms,
    )  # fmt: skip
    return Look(dropped, tuple(fire))


def fire(key: ScheduleKey, schedule: Schedule, tick_ms: int, is_open: Callable[[str], bool]) -> ScheduleEvent:
    """Fire a tick, or drop it because of the activity before. `is_open`: whether an activity of the schedule is not finished."""
    next_ms = next_tick_ms(schedule.spec, tick_ms)
    if (
        schedule.spec.overlap is OverlapPolicy.SKIP
        and schedule.firings
        and is_open(schedule.firings[-1].activity_id)
    ):
        return ScheduleTicksDropped(
            schedule_id=key.schedule_id, count=1, first_ms=tick_ms, last_ms=tick_ms, overlapping=True,
            next_ms=next_ms,
        )  # fmt: skip
    return ScheduleFired(
        schedule_id=key.schedule_id, activity_id=format_moment(tick_ms), tick_ms=tick_ms, next_ms=next_ms
    )


ScheduleEvents = tuple[ScheduleEvent, ...]


def known_schedule(key: ScheduleKey, schedule: Schedule | None) -> Schedule:
    if schedule is None:
        raise ScheduleNotFound(schedule=key.schedule_id, namespace=key.namespace)
    return schedule


# -- evolve


class ImpossibleScheduleEvent(Exception):
    """The log holds an event about a schedule that does not exist: the log or this program is broken."""


def evolve(schedule: Schedule | None, event: ScheduleEvent, wall_ms: int) -> Schedule | None:
    """`wall_ms`: the wall time that the log has for the event."""
    if isinstance(event, ScheduleSaved):
        if schedule is None:
            return Schedule(event.spec, wall_ms, wall_ms, event.next_ms)
        return schedule._replace(spec=event.spec, updated_ms=wall_ms, next_ms=event.next_ms)
    if schedule is None:
        raise ImpossibleScheduleEvent(f"{type(event).__name__} about a schedule that is not known")
    match event:
        case ScheduleDeleted():
            return None
        case SchedulePaused():
            return schedule._replace(paused=True, pause_reason=event.reason, updated_ms=wall_ms)
        case ScheduleResumed():
            return schedule._replace(paused=False, pause_reason="", updated_ms=wall_ms, next_ms=event.next_ms)
        case ScheduleTicksDropped():
            if event.overlapping:
                return schedule._replace(next_ms=event.next_ms, overlapped=schedule.overlapped + event.count)
            return schedule._replace(next_ms=event.next_ms, missed=schedule.missed + event.count)
        case ScheduleFired():
            firing = Firing(event.activity_id, event.tick_ms, wall_ms)
            return schedule._replace(
                next_ms=event.next_ms,
                last_tick_ms=max(schedule.last_tick_ms, event.tick_ms),
                fired=schedule.fired + 1,
                firings=(*schedule.firings, firing)[-RECENT_FIRINGS_KEPT:],
            )
