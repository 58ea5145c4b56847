"""The values that the golden rows of version 13 decode to: those of version 12, an activity with time limits, and several errors in one
report of progress."""

from __future__ import annotations

from typing import Any

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.events import (
    ActivityEvent,
    ActivityHeartbeatRecorded,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
    ProgressReported,
    Retry,
    TimeLimit,
    TimeLimits,
)
from liveness.domain.keys import ActivityId
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v12
from tests.unit.store.golden_v1 import WALL_MS
from tests.unit.store.golden_v12 import (
    DEATHS,
    FINAL_WORKERS,
    PULSES,
    SETTINGS,
    STORED_BINDING,
    STORED_PROGRESS,
    STORED_WORKERS,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_PROGRESS", "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

LIMITED = ActivityId("workflow-9", "run", "begrenzt ⏱")
LIMITS = TimeLimits(600_000, 60_000, 2_000, 500)
MESSAGE = "heartbeat of 0.5 s is over: attempt 1 on worker worker-1 has sent no heartbeat since its last; it is tried again"
_OF: dict[str, Any] = {"run_id": LIMITED.run_id, "activity_id": LIMITED.activity_id}


def _about(at_ms: int, event: ActivityEvent) -> LogEntry:
    return LogEntry(0, "orders", None, LIMITED.workflow_id, WALL_MS + at_ms, at_ms, event)


# fmt: off
_ADDED = [
    _about(12_000, ActivityScheduled(
        **_OF, activity_type="crawl", task_queue="queue", input=b"", retry=Retry(), at_ms=12_000, due_ms=12_000, limits=LIMITS,
    )),
    _about(12_100, ActivityStarted(**_OF, worker="worker-1", epoch=1, attempt=1, at_ms=12_100, verify_ms=22_100)),
    _about(12_200, ActivityHeartbeatRecorded(
        **_OF, attempt=1, at_ms=12_200, details=b'{"rows": 17}', details_encoding="json/plain",
    )),
    _about(12_300, ActivityHeartbeatRecorded(**_OF, attempt=1, at_ms=12_300)),
    _about(12_800, ActivityTimedOut(
        **_OF, limit=TimeLimit.HEARTBEAT, limit_ms=500, at_ms=12_800, since_ms=12_300, since_wall_ms=WALL_MS + 12_300, attempt=1,
        worker="worker-1", epoch=1, heard_wall_ms=WALL_MS + 12_300, due_ms=13_800, message=MESSAGE,
    )),
    LogEntry(0, "orders", None, None, WALL_MS + 12_900, 12_900, ProgressReported(
        unit="table/größe", worker="worker-1", successes=0, error="weg", report_id="bericht-2", errors=3,
    )),
]
# fmt: on

_EARLIER = golden_v12.MEANING
MEANING = _EARLIER + [
    entry._replace(seq=_EARLIER[-1].seq + index) for index, entry in enumerate(_ADDED, start=1)
]

_LIMITED = Activity(
    id=LIMITED,
    state=ActivityState.WAITING,
    attempt=2,
    task_queue="queue",
    token=b"",
    releases=(),
    type="crawl",
    retry=Retry(),
    since_ms=12_800,
    since_wall_ms=WALL_MS + 12_800,
    due_ms=13_800,
    failures=1,
    last_failure=MESSAGE,
    limits=LIMITS,
    close_by_ms=612_000,
    heard_ms=12_300,
    heard_wall_ms=WALL_MS + 12_300,
    details=b'{"rows": 17}',
    details_encoding="json/plain",
    details_wall_ms=WALL_MS + 12_200,
    timed_out="heartbeat",
)
FINAL_ACTIVITIES = {**golden_v12.FINAL_ACTIVITIES, LIMITED: _LIMITED}
STORED_ACTIVITIES = {**golden_v12.STORED_ACTIVITIES, "limited": _LIMITED}
