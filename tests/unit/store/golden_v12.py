"""The values that the golden rows of version 12 decode to: those of version 11, a worker that reports errors and sends several
heartbeats in one row, and progress."""

from __future__ import annotations

from liveness.domain.events import (
    Event,
    ProgressForgotten,
    ProgressReported,
    SessionReplaced,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.events import LeaseRenewed as Renewed
from liveness.domain.progress import UnitProgress
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    InactiveReason,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.codec import LogEntry, RenewalBatch
from tests.unit.store import golden_v9, golden_v11
from tests.unit.store.golden_v1 import WALL_MS, activation
from tests.unit.store.golden_v11 import (
    DEATHS,
    FINAL_ACTIVITIES,
    SETTINGS,
    STORED_ACTIVITIES,
    STORED_BINDING,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_PROGRESS", "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

FAULTY = "worker-5"
ERROR = "kaputt 💥"
NUMBER = golden_v11.MEANING[-1].seq + 1


def _about(worker: str | None, at_ms: int, event: Event | RenewalBatch) -> LogEntry:
    namespace = None if isinstance(event, RenewalBatch) else "orders"
    return LogEntry(0, namespace, worker, None, WALL_MS + at_ms, at_ms, event)


# fmt: off
_ADDED = [
    _about(FAULTY, 11_000, WorkerRegistered(**activation(at_ms=11_000, last_error=ERROR, errors=1, error_reported=True))),
    _about(None, 11_200, RenewalBatch(
        [NUMBER, NUMBER], [Renewed(0, 11_100, 0, 1), Renewed(0, 11_200, 4, 1)],
    )),
    _about(FAULTY, 11_300, WorkerDescribed(
        profile=NO_PROFILE, status=WorkerStatus.RUNNING, last_error=ERROR, error_reported=True,
    )),
    _about(None, 11_300, RenewalBatch([NUMBER], [Renewed(0, 11_300, 4, 2)])),
    _about(FAULTY, 11_400, SessionReplaced(**activation(
        session_id="session-b", epoch=2, at_ms=11_400, last_error="none", errors=2, error_reported=True,
    ))),
    _about(FAULTY, 11_500, WorkerDeactivated(
        reason=InactiveReason.SHUTDOWN, detail="", at_ms=11_500, cleanup_delay_ms=60_000,
    )),
    _about(FAULTY, 11_600, WorkerResurrected(**activation(
        session_id="session-b", sequence=2, epoch=3, at_ms=11_600, last_error=ERROR, errors=3, error_reported=True,
    ))),
    _about(None, 11_700, ProgressReported(unit="table/größe", worker=FAULTY, successes=7, error="", report_id="bericht-1")),
    _about(None, 11_800, ProgressReported(unit="table/größe", worker="worker-2", successes=0, error="nul \0 inside", report_id="")),
    _about(None, 11_900, ProgressForgotten(unit="table/größe", reason="tabelle weg 🗑", by=golden_v9.OPERATOR)),
]
# fmt: on

_EARLIER = golden_v11.MEANING
MEANING = _EARLIER + [
    entry._replace(seq=_EARLIER[-1].seq + index) for index, entry in enumerate(_ADDED, start=1)
]

_FAULTY = Worker(
    number=NUMBER,
    state=WorkerState.ACTIVE,
    session_id="session-b",
    sequence=2,
    epoch=3,
    granted_ms=30_000,
    renewed_ms=11_600,
    deadline_ms=41_600,
    bindings=NO_BINDINGS,
    lost=NO_BINDINGS,
    superseded=("session-a",),
    profile=NO_PROFILE,
    status=WorkerStatus.UNSPECIFIED,
    last_error=ERROR,
    successes=0,
    errors=3,
    resync=False,
    inactive_reason=None,
    inactive_detail="",
    standing=Standing(last_error_wall_ms=WALL_MS + 11_600),
    wall_offset_ms=WALL_MS,
    heartbeats=6,
)
FINAL_WORKERS: dict[str, Worker | None] = {**golden_v11.FINAL_WORKERS, FAULTY: _FAULTY}
STORED_WORKERS: dict[str, Worker | None] = {**golden_v11.STORED_WORKERS, "faulty": _FAULTY}
PULSES = [state._replace(heartbeats=number) for number, state in enumerate(golden_v11.PULSES, start=5)]
STORED_PROGRESS = {
    "progress": UnitProgress(
        created_wall_ms=WALL_MS + 11_700,
        updated_wall_ms=WALL_MS + 11_800,
        successes=7,
        errors=1,
        last_success_wall_ms=WALL_MS + 11_700,
        last_success_worker=FAULTY,
        last_error_wall_ms=WALL_MS + 11_800,
        last_error="nul \0 inside",
        last_error_worker="worker-2",
        failing=True,
        report_ids=("bericht-1",),
    )
}
