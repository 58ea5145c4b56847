"""The values that the golden rows of version 9 decode to: those of version 8, whose orders name the operator that gave them."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.events import (
    ActivityMadeAvailable,
    ConfigChanged,
    DrainBegun,
    WorkerDeactivated,
    WorkerForgotten,
    WorkerPaused,
    WorkerResumed,
)
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v8
from tests.unit.store.golden_v8 import (
    DEATHS,
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
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

OPERATOR = "jwt:größe@example.org"


def _ordered(entry: LogEntry) -> LogEntry:
    event = entry.event
    match event:
        case WorkerDeactivated(certificate=None) | ActivityMadeAvailable(fresh=True):
            return entry._replace(event=replace(event, by=OPERATOR))
        case WorkerPaused() | WorkerResumed() | DrainBegun() | WorkerForgotten() | ConfigChanged():
            return entry._replace(event=replace(event, by=OPERATOR))
    return entry


MEANING = [*map(_ordered, golden_v8.MEANING)]
