"""The values that the golden rows of version 4 decode to: those of version 3 with the storm hold."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.events import WorkerDeactivated
from liveness.domain.verdicts import is_death
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v3
from tests.unit.store.golden_v3 import (
    CERTIFICATE,
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


def _held(entry: LogEntry) -> LogEntry:
    if not is_death(entry.event):
        return entry
    assert isinstance(entry.event, WorkerDeactivated)
    return entry._replace(event=replace(entry.event, certificate=replace(CERTIFICATE, held_ms=1_250)))


MEANING = [_held(entry) for entry in golden_v3.MEANING]
