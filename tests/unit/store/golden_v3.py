"""The values that the golden rows of version 3 decode to: those of version 2 with death certificates."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.death_certificate import ConcurrentDeaths, DeathCertificate, Stall
from liveness.domain.events import WorkerDeactivated
from liveness.domain.verdicts import is_death
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v2
from tests.unit.store.golden_v1 import WALL_MS
from tests.unit.store.golden_v2 import (
    FINAL_ACTIVITIES,
    FINAL_WORKERS,
    PULSES,
    SETTINGS,
    STORED_ACTIVITIES,
    STORED_BINDING,
    STORED_WORKERS,
    TAKE_OVERS,
)

__all__ = [
    "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

CERTIFICATE = DeathCertificate(
    epoch=1,
    session_id="sitzung-ü",
    silence_ms=2_000,
    granted_ms=30_000,
    activities=1,
    heartbeats=(WALL_MS + 1_500, WALL_MS + 2_000),
    stalls=(Stall(WALL_MS + 2_100, 700), Stall(WALL_MS + 2_900)),
    company=ConcurrentDeaths(same_host=41, same_build=3, same_namespace=60),
    host_name="db-3 🖥",
    build_id="2026.11",
    task_queue="bilder",
)


def _certified(entry: LogEntry) -> LogEntry:
    if not is_death(entry.event):
        return entry
    assert isinstance(entry.event, WorkerDeactivated)
    return entry._replace(event=replace(entry.event, certificate=CERTIFICATE))


MEANING = [_certified(entry) for entry in golden_v2.MEANING]
