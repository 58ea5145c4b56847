"""The values that the golden rows of version 13 decode to: those of version 12, an activity with time limits, several errors in one
report of progress, a component whose name another process had before, and a schedule."""

from __future__ import annotations

from typing import Any

from liveness.domain.activity import Activity, ActivityState, EndedAttempt
from liveness.domain.concurrency import ConcurrencyLimit
from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityEvent,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityMadeAvailable,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
    ConcurrencyLimitRemoved,
    ConcurrencyLimitSet,
    Event,
    FiredActivity,
    MissedPolicy,
    OverlapPolicy,
    Priority,
    ProgressReported,
    Retry,
    ScheduleDeleted,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSaved,
    ScheduleSpec,
    ScheduleTicksDropped,
    TimeLimit,
    TimeLimits,
)
from liveness.domain.keys import ActivityId
from liveness.domain.registry import FormerSession
from liveness.domain.schedule import Firing, Schedule
from liveness.domain.worker import Worker
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v9, golden_v11, golden_v12
from tests.unit.store.golden_v1 import WALL_MS
from tests.unit.store.golden_v12 import (
    DEATHS,
    FINAL_WORKERS,
    PULSES,
    SETTINGS,
    STORED_BINDING,
    STORED_PROGRESS,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_LIMITS", "STORED_PROGRESS", "STORED_SCHEDULES", "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

LIMITED = ActivityId("workflow-9", "run", "begrenzt ⏱")
PRIORITY = Priority(1, "mandant 🏢", 2.5)
LIMITS = TimeLimits(600_000, 60_000, 2_000, 500)
MESSAGE = "heartbeat of 0.5 s is over: attempt 1 on worker worker-1 has sent no heartbeat since its last; it is tried again"
TRACE = 'Traceback (most recent call last):\n  File "größe.py", line 17, in <module>\n'
_OF: dict[str, Any] = {"run_id": LIMITED.run_id, "activity_id": LIMITED.activity_id}


def _about(at_ms: int, event: ActivityEvent) -> LogEntry:
    return LogEntry(0, "orders", None, LIMITED.workflow_id, WALL_MS + at_ms, at_ms, event)


NIGHTLY = "nachts 🌙"
FIRED = FiredActivity(
    "report", "queue", b'{"gr\xc3\xb6\xc3\x9fe": 1}', "json/plain", Retry(max_attempts=3), LIMITS, PRIORITY
)
NIGHTLY_SPEC = ScheduleSpec(
    FIRED, "30 2 * * mon-fri", "Europe/Berlin", missed=MissedPolicy.ALL, overlap=OverlapPolicy.SKIP, window_ms=5_000,
    note="für Menschen",
)  # fmt: skip
EVERY = ScheduleSpec(FIRED._replace(input=b"", retry=Retry()), every_ms=60_000, offset_ms=1_000)
TICK_MS = 1_790_037_000_000
_SCHEDULE: dict[str, str] = {"schedule_id": NIGHTLY}


def _of_schedule(at_ms: int, event: Event) -> LogEntry:
    return LogEntry(0, "orders", None, None, WALL_MS + at_ms, at_ms, event)


# fmt: off
_ADDED = [
    _about(11_950, ActivityScheduled(
        run_id="run", activity_id="später", activity_type="crawl", task_queue="queue", input=b"", retry=Retry(), at_ms=11_950,
        due_ms=71_950, start_wall_ms=WALL_MS + 71_950,
    )),
    _about(12_000, ActivityScheduled(
        **_OF, activity_type="crawl", task_queue="queue", input=b"", retry=Retry(), at_ms=12_000, due_ms=12_000, limits=LIMITS,
        by=golden_v9.OPERATOR, priority=PRIORITY,
    )),
    _about(12_100, ActivityStarted(**_OF, worker="worker-1", epoch=1, attempt=1, at_ms=12_100, verify_ms=22_100)),
    _about(12_200, ActivityHeartbeatRecorded(
        **_OF, attempt=1, at_ms=12_200, heartbeat_details=b'{"rows": 17}', heartbeat_details_encoding="json/plain",
    )),
    _about(12_300, ActivityHeartbeatRecorded(**_OF, attempt=1, at_ms=12_300)),
    _about(12_800, ActivityTimedOut(
        **_OF, limit=TimeLimit.HEARTBEAT, limit_ms=500, at_ms=12_800, since_ms=12_300, since_wall_ms=WALL_MS + 12_300, attempt=1,
        worker="worker-1", epoch=1, heard_wall_ms=WALL_MS + 12_300, due_ms=13_800, message=MESSAGE,
    )),
    _about(13_800, ActivityMadeAvailable(**_OF, attempt=2, at_ms=13_800)),
    _about(13_900, ActivityStarted(**_OF, worker="worker-1", epoch=1, attempt=2, at_ms=13_900, verify_ms=23_900)),
    _about(14_000, ActivityAttemptFailed(
        **_OF, worker="worker-1", epoch=1, attempt=2, at_ms=14_000, message="kaputt", due_ms=14_000, stack_trace=TRACE,
    )),
    _about(14_000, ActivityMadeAvailable(**_OF, attempt=3, at_ms=14_000)),
    _about(14_100, ActivityStarted(**_OF, worker="worker-1", epoch=1, attempt=3, at_ms=14_100, verify_ms=24_100)),
    _about(14_200, ActivityFailed(
        **_OF, worker="worker-1", epoch=1, attempt=3, at_ms=14_200, message="kaputt", stack_trace=TRACE,
    )),
    _about(14_300, ActivityMadeAvailable(
        **_OF, attempt=4, at_ms=14_300, fresh=True, by=golden_v9.OPERATOR, reason="repariert 🔧",
    )),
    _about(14_400, ActivityStarted(**_OF, worker="worker-1", epoch=1, attempt=4, at_ms=14_400, verify_ms=24_400)),
    _about(14_500, ActivityHeartbeatRecorded(
        **_OF, attempt=4, at_ms=14_500, heartbeat_details=b'{"rows": 18}', heartbeat_details_encoding="json/plain",
    )),
    _about(14_600, ActivityCancelled(**_OF, reason="nicht mehr nötig", at_ms=14_600, by=golden_v9.OPERATOR)),
    LogEntry(0, "orders", None, None, WALL_MS + 12_900, 12_900, ProgressReported(
        unit="table/größe", worker="worker-1", successes=0, error="weg", report_id="bericht-2", errors=3,
    )),
    _of_schedule(15_000, ScheduleSaved(**_SCHEDULE, spec=EVERY, next_ms=TICK_MS)),
    _of_schedule(15_100, ScheduleSaved(**_SCHEDULE, spec=NIGHTLY_SPEC, next_ms=TICK_MS, by=golden_v9.OPERATOR)),
    _of_schedule(15_200, ScheduleFired(
        **_SCHEDULE, activity_id="2026-09-22T00:30:00Z", tick_ms=TICK_MS, next_ms=TICK_MS + 86_400_000,
    )),
    _of_schedule(15_300, ScheduleTicksDropped(
        **_SCHEDULE, count=2, first_ms=TICK_MS + 86_400_000, last_ms=TICK_MS + 172_800_000, overlapping=False,
        next_ms=TICK_MS + 259_200_000,
    )),
    _of_schedule(15_400, ScheduleTicksDropped(
        **_SCHEDULE, count=1, first_ms=TICK_MS + 259_200_000, last_ms=TICK_MS + 259_200_000, overlapping=True,
        next_ms=TICK_MS + 345_600_000,
    )),
    _of_schedule(15_500, ScheduleFired(
        **_SCHEDULE, activity_id="trigger-größe", tick_ms=0, next_ms=TICK_MS + 345_600_000, by=golden_v9.OPERATOR,
    )),
    _of_schedule(15_600, SchedulePaused(**_SCHEDULE, reason="umzug 🚚", by=golden_v9.OPERATOR)),
    _of_schedule(15_700, ScheduleResumed(**_SCHEDULE, next_ms=0, reason="fertig", by=golden_v9.OPERATOR)),
    _of_schedule(15_800, ScheduleDeleted(**_SCHEDULE, reason="weg", by=golden_v9.OPERATOR)),
    _of_schedule(15_900, ConcurrencyLimitSet(workflow_id="mandant 🏢", maximum=3)),
    _of_schedule(15_910, ConcurrencyLimitSet(
        workflow_id="mandant 🏢", maximum=2, reason="zu viel", by=golden_v9.OPERATOR,
    )),
    _of_schedule(15_920, ConcurrencyLimitRemoved(
        workflow_id="mandant 🏢", reason="weg", by=golden_v9.OPERATOR,
    )),
]
# fmt: on

_EARLIER = golden_v12.MEANING
MEANING = _EARLIER + [
    entry._replace(seq=_EARLIER[-1].seq + index) for index, entry in enumerate(_ADDED, start=1)
]

_FINISHED = Activity(
    id=LIMITED,
    state=ActivityState.CANCELLED,
    attempt=4,
    task_queue="queue",
    token=b"",
    releases=(),
    type="crawl",
    retry=Retry(),
    since_ms=14_600,
    since_wall_ms=WALL_MS + 14_600,
    last_failure="nicht mehr nötig",
    end=EndedAttempt("worker-1", 1, 3, "ActivityFailed"),
    limits=LIMITS,
    priority=PRIORITY,
    close_by_ms=614_300,
    heard_ms=14_500,
    heard_wall_ms=WALL_MS + 14_500,
    details=b'{"rows": 18}',
    details_encoding="json/plain",
    details_wall_ms=WALL_MS + 14_500,
)
_TIMED_OUT = _FINISHED._replace(
    state=ActivityState.WAITING,
    attempt=2,
    due_ms=13_800,
    failures=1,
    last_failure=MESSAGE,
    timed_out="heartbeat",
    end=None,
)
_LATER = Activity(
    id=LIMITED._replace(activity_id="später"),
    state=ActivityState.WAITING,
    attempt=1,
    task_queue="queue",
    token=b"",
    releases=(),
    type="crawl",
    retry=Retry(),
    since_ms=11_950,
    since_wall_ms=WALL_MS + 11_950,
    due_ms=71_950,
    start_wall_ms=WALL_MS + 71_950,
)
FINAL_ACTIVITIES = {**golden_v12.FINAL_ACTIVITIES, LIMITED: _FINISHED, _LATER.id: _LATER}
STORED_ACTIVITIES = {
    **golden_v12.STORED_ACTIVITIES,
    "limited": _TIMED_OUT,
    "cancelled": _FINISHED,
    "later": _LATER,
}
_SUCCEEDED = golden_v11.FINAL_WORKERS[golden_v11.BROKER]
assert _SUCCEEDED is not None
STORED_WORKERS: dict[str, Worker | None] = {
    **golden_v12.STORED_WORKERS,
    "registered_after_another": _SUCCEEDED._replace(
        session_id="wirt:3",
        superseded=("wirt:1",),
        standing=_SUCCEEDED.standing._replace(former=(FormerSession("wirt:1", 17),)),
    ),
}

_PAUSED = Schedule(
    NIGHTLY_SPEC,
    WALL_MS + 15_000,
    WALL_MS + 15_600,
    TICK_MS + 345_600_000,
    paused=True,
    pause_reason="umzug 🚚",
    last_tick_ms=TICK_MS,
    fired=2,
    missed=2,
    overlapped=1,
    firings=(
        Firing("2026-09-22T00:30:00Z", TICK_MS, WALL_MS + 15_200),
        Firing("trigger-größe", 0, WALL_MS + 15_500),
    ),
)
STORED_SCHEDULES = {
    "schedule": _PAUSED,
    "new schedule": Schedule(EVERY, WALL_MS + 15_000, WALL_MS + 15_000, TICK_MS),
}
STORED_LIMITS = {"concurrency limit": ConcurrencyLimit(2, WALL_MS + 15_900, WALL_MS + 15_910)}
