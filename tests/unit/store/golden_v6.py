"""The values that the golden rows of version 6 decode to: those of version 5 with tombstones that remember sessions, epoch
floors, and a worker in its second incarnation."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.events import (
    SessionReplaced,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
)
from liveness.domain.worker import NO_BINDINGS, NO_PROFILE, InactiveReason, Worker, WorkerState, WorkerStatus
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v5
from tests.unit.store.golden_v1 import SHIP, WALL_MS, activation
from tests.unit.store.golden_v5 import (
    DEATHS,
    FINAL_ACTIVITIES,
    PULSES,
    SETTINGS,
    STORED_ACTIVITIES,
    STORED_BINDING,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip


def _remembered(entry: LogEntry) -> LogEntry:
    if isinstance(entry.event, WorkerCleanedUp):
        return entry._replace(event=replace(entry.event, keeps_sessions=True))
    if isinstance(entry.event, WorkerForgotten):
        return entry._replace(event=replace(entry.event, epoch_floor=2, reason="rechner weg 🗑"))
    return entry


def _worker_4(at_ms: int, event: WorkerEvent) -> LogEntry:
    return LogEntry(0, "orders", "worker-4", None, WALL_MS + at_ms, at_ms, event)


# fmt: off
_SECOND_INCARNATION = [
    _worker_4(9_000, WorkerRegistered(**activation(at_ms=9_000, session_id="first"))),
    _worker_4(9_100, SessionReplaced(**activation(at_ms=9_100, session_id="second", epoch=2))),
    _worker_4(9_200, WorkerDeactivated(
        reason=InactiveReason.SHUTDOWN, detail="", at_ms=9_200, cleanup_delay_ms=1
    )),
    _worker_4(9_300, WorkerCleanedUp(at_ms=9_300, tombstone_retention_ms=1_000, keeps_sessions=True)),
    _worker_4(9_400, WorkerRegistered(**activation(
        at_ms=9_400, session_id="third", epoch=3, granted_ms=30_000, bindings=(SHIP,)
    ))),
]
# fmt: on

_EARLIER = [_remembered(entry) for entry in golden_v5.MEANING]
MEANING = _EARLIER + [
    entry._replace(seq=len(_EARLIER) + index) for index, entry in enumerate(_SECOND_INCARNATION, start=1)
]

_WORKER_4 = Worker(
    number=len(MEANING),
    state=WorkerState.ACTIVE,
    session_id="third",
    sequence=1,
    epoch=3,
    granted_ms=30_000,
    renewed_ms=9_400,
    deadline_ms=39_400,
    bindings={SHIP.id: SHIP},
    lost=NO_BINDINGS,
    superseded=("first", "second"),
    profile=NO_PROFILE,
    status=WorkerStatus.UNSPECIFIED,
    last_error="",
    successes=0,
    errors=0,
    resync=False,
    inactive_reason=None,
    inactive_detail="",
    wall_offset_ms=WALL_MS,
    heartbeats=1,
)
FINAL_WORKERS: dict[str, Worker | None] = {**golden_v5.FINAL_WORKERS, "worker-4": _WORKER_4}
_TOMBSTONE = golden_v5.STORED_WORKERS["tombstone"]
assert _TOMBSTONE is not None
STORED_WORKERS = {
    **golden_v5.STORED_WORKERS,
    "tombstone": _TOMBSTONE._replace(superseded=("first", "second")),
}
