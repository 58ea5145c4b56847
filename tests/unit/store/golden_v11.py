"""The rows of `golden/v11.jsonl` and `golden/v11-rows.json`: those of version 10, and a registered component with replicas."""

from __future__ import annotations

from liveness.domain.events import (
    EntryChanged,
    ReplicaLeft,
    ReplicaSeen,
    WorkerEvent,
    WorkerRegistered,
)
from liveness.domain.registry import Entry, Replica
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v10
from tests.unit.store.golden_v1 import WALL_MS, activation, without_counts
from tests.unit.store.golden_v10 import (
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

BROKER = "broker:größe-1"
SERVER = "server_api:leer"


def _about(worker: str, at_ms: int, event: WorkerEvent) -> LogEntry:
    return LogEntry(0, "orders", worker, None, WALL_MS + at_ms, at_ms, event)


# fmt: off
_REGISTERED = [
    _about(BROKER, 11_000, WorkerRegistered(**activation(at_ms=11_000, session_id="wirt:1"))),
    _about(BROKER, 11_000, EntryChanged(
        uri="nats://größe:4222", status="ready", capacity=0, runtime='{"typ":"ü"}', interval_ms=15_000, lease_ms=60_000,
        wall_ms=WALL_MS + 11_000,
    )),
    _about(BROKER, 11_100, ReplicaSeen(
        session_id="wirt:2", host_name="wirt", process_id="2", uri="nats://zwei:4222", at_ms=11_100, wall_ms=WALL_MS + 11_100,
    )),
    _about(BROKER, 11_200, ReplicaSeen(
        session_id="wirt:3", host_name="", process_id="", uri="", at_ms=11_200, wall_ms=WALL_MS + 11_200,
    )),
    _about(BROKER, 11_300, ReplicaSeen(
        session_id="wirt:2", host_name="wirt", process_id="2", uri="nats://zwei:4222", at_ms=11_300, wall_ms=WALL_MS + 11_300,
    )),
    _about(BROKER, 11_400, ReplicaLeft(session_id="wirt:3")),
    _about(BROKER, 11_500, EntryChanged(
        uri="nats://größe:4222", status="langsam", capacity=8, runtime="", interval_ms=15_000, lease_ms=60_000,
        wall_ms=WALL_MS + 11_500,
    )),
    _about(SERVER, 11_600, WorkerRegistered(**activation(at_ms=11_600, session_id=""))),
    _about(SERVER, 11_600, EntryChanged(
        uri="", status="ready", capacity=None, runtime="", interval_ms=0, lease_ms=0, wall_ms=WALL_MS + 11_600,
    )),
]
# fmt: on

_EARLIER = golden_v10.MEANING
MEANING = _EARLIER + [
    entry._replace(seq=_EARLIER[-1].seq + index) for index, entry in enumerate(_REGISTERED, start=1)
]

_BROKER = Worker(
    number=_EARLIER[-1].seq + 1,
    state=WorkerState.ACTIVE,
    session_id="wirt:1",
    sequence=1,
    epoch=1,
    granted_ms=30_000,
    renewed_ms=11_000,
    deadline_ms=41_000,
    bindings=NO_BINDINGS,
    lost=NO_BINDINGS,
    superseded=(),
    profile=NO_PROFILE,
    status=WorkerStatus.UNSPECIFIED,
    last_error="",
    successes=0,
    errors=0,
    resync=False,
    inactive_reason=None,
    inactive_detail="",
    standing=Standing(
        entry=Entry(
            uri="nats://größe:4222",
            status="langsam",
            capacity=8,
            interval_ms=15_000,
            lease_ms=60_000,
            first_seen_wall_ms=WALL_MS + 11_000,
            replicas=(
                Replica(
                    "wirt:2", "wirt", "2", "nats://zwei:4222", 11_300, WALL_MS + 11_100, WALL_MS + 11_300
                ),
            ),
        )
    ),
    wall_offset_ms=WALL_MS,
    heartbeats=1,
)
_SERVER = _BROKER._replace(
    number=_EARLIER[-1].seq + 8,
    session_id="",
    renewed_ms=11_600,
    deadline_ms=41_600,
    standing=Standing(entry=Entry(first_seen_wall_ms=WALL_MS + 11_600)),
)
FINAL_WORKERS: dict[str, Worker | None] = {
    **golden_v10.FINAL_WORKERS,
    BROKER: _BROKER,
    SERVER: _SERVER,
}
STORED_WORKERS = {
    **golden_v10.STORED_WORKERS,
    **without_counts({"registered": _BROKER, "registered_without_facts": _SERVER}),
}
