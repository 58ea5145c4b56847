"""The values that the golden rows of version 10 decode to: those of version 9, a component that crashed, and its supervisor
with orders."""

from __future__ import annotations

from liveness.domain.component import (
    Component,
    ComponentOrder,
    ComponentStatus,
    OrderAction,
    OrderBook,
    ProcessExit,
)
from liveness.domain.death_certificate import DeathCertificate
from liveness.domain.events import (
    ComponentChanged,
    ComponentOrdersDone,
    ComponentsOrdered,
    WorkerDeactivated,
    WorkerEvent,
    WorkerRegistered,
)
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    InactiveReason,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v9
from tests.unit.store.golden_v1 import WALL_MS, activation, without_counts
from tests.unit.store.golden_v9 import (
    DEATHS,
    FINAL_ACTIVITIES,
    OPERATOR,
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

COMPONENT = "worker:images:0"
SUPERVISOR = "supervisor:images"
EXIT = ProcessExit(None, "SIGKILL", WALL_MS + 10_300, ("lädt 🖼", "nul \0 inside"))
FIRST_ORDER = ComponentOrder(1, OrderAction.RESTART, (COMPONENT,), 0, "neuer Bau", OPERATOR, WALL_MS + 10_400)
SECOND_ORDER = ComponentOrder(2, OrderAction.SCALE, (), 4, "", "", WALL_MS + 10_500)


def _about(worker: str, at_ms: int, event: WorkerEvent) -> LogEntry:
    return LogEntry(0, "orders", worker, None, WALL_MS + at_ms, at_ms, event)


# fmt: off
_SUPERVISED = [
    _about(COMPONENT, 10_000, WorkerRegistered(**activation(at_ms=10_000, session_id="prozess-1"))),
    _about(COMPONENT, 10_100, ComponentChanged(
        number=1, status=ComponentStatus.STARTING, wall_ms=WALL_MS + 10_050, session_id="prozess-1", reason="", by=OPERATOR,
        process_id=4_711, process_start_ms=WALL_MS + 10_040, paused=True, wanted=True, details='{"größe":1}', restart_count=1,
        restarts=(WALL_MS + 10_040,), last_exit=ProcessExit(1, "", WALL_MS + 9_000, ()),
    )),
    _about(COMPONENT, 10_300, ComponentChanged(
        number=2, status=ComponentStatus.CRASHED, wall_ms=WALL_MS + 10_300, session_id="prozess-1", reason="killed by SIGKILL", by="",
        process_id=0, process_start_ms=0, paused=True, wanted=False, details="", restart_count=1,
        restarts=(WALL_MS + 10_040,), last_exit=EXIT,
    )),
    _about(COMPONENT, 10_300, WorkerDeactivated(
        reason=InactiveReason.PROCESS_EXITED, detail="killed by SIGKILL", at_ms=10_300, cleanup_delay_ms=60_000,
        certificate=DeathCertificate(
            epoch=1, session_id="prozess-1", silence_ms=300, granted_ms=30_000, activities=0, heartbeats=(WALL_MS + 10_000,), exit=EXIT,
        ),
    )),
    _about(SUPERVISOR, 10_350, WorkerRegistered(**activation(at_ms=10_350, session_id="aufseher"))),
    _about(SUPERVISOR, 10_400, ComponentsOrdered(order=FIRST_ORDER)),
    _about(SUPERVISOR, 10_500, ComponentsOrdered(order=SECOND_ORDER)),
    _about(SUPERVISOR, 10_600, ComponentOrdersDone(through=1)),
]
# fmt: on

_EARLIER = golden_v9.MEANING
MEANING = _EARLIER + [
    entry._replace(seq=_EARLIER[-1].seq + index) for index, entry in enumerate(_SUPERVISED, start=1)
]

_COMPONENT = Worker(
    number=_EARLIER[-1].seq + 1,
    state=WorkerState.INACTIVE,
    session_id="prozess-1",
    sequence=1,
    epoch=1,
    granted_ms=30_000,
    renewed_ms=10_000,
    deadline_ms=70_300,
    bindings=NO_BINDINGS,
    lost=NO_BINDINGS,
    superseded=(),
    profile=NO_PROFILE,
    status=WorkerStatus.UNSPECIFIED,
    last_error="",
    successes=0,
    errors=0,
    resync=False,
    inactive_reason=InactiveReason.PROCESS_EXITED,
    inactive_detail="killed by SIGKILL",
    standing=Standing(
        paused=True,
        component=Component(
            number=2,
            status=ComponentStatus.CRASHED,
            since_ms=WALL_MS + 10_300,
            session_id="prozess-1",
            reason="killed by SIGKILL",
            paused=True,
            wanted=False,
            restart_count=1,
            restarts=(WALL_MS + 10_040,),
            created_ms=WALL_MS + 10_050,
            last_exit=EXIT,
        ),
    ),
    wall_offset_ms=WALL_MS,
    heartbeats=1,
)
_SUPERVISOR = _COMPONENT._replace(
    number=_EARLIER[-1].seq + 5,
    state=WorkerState.ACTIVE,
    session_id="aufseher",
    renewed_ms=10_350,
    deadline_ms=40_350,
    inactive_reason=None,
    inactive_detail="",
    standing=Standing(orders=OrderBook(2, (SECOND_ORDER,))),
)
FINAL_WORKERS: dict[str, Worker | None] = {
    **golden_v9.FINAL_WORKERS,
    COMPONENT: _COMPONENT,
    SUPERVISOR: _SUPERVISOR,
}
STORED_WORKERS = {
    **golden_v9.STORED_WORKERS,
    **without_counts({"component": _COMPONENT, "supervisor": _SUPERVISOR}),
}
