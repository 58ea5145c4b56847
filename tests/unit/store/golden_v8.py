"""The values that the golden rows of version 8 decode to: those of version 7 with the principals that own worker keys."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.events import Activation, WorkerAdopted
from liveness.domain.worker import Worker, WorkerState
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v7
from tests.unit.store.golden_v7 import (
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

OWNER = "jwt:system:serviceaccount:größe:render"


def _owned(entry: LogEntry) -> LogEntry:
    return (
        entry._replace(event=replace(entry.event, principal=OWNER))
        if isinstance(entry.event, Activation)
        else entry
    )


def _owned_worker(worker: Worker | None) -> Worker | None:
    return None if worker is None else worker._replace(principal=OWNER)


_LAST = golden_v7.MEANING[-1]
_ADOPTED = min(
    name
    for name, worker in golden_v7.FINAL_WORKERS.items()
    if worker is not None and worker.state is WorkerState.ACTIVE
)
_NAMESPACE = next(entry.namespace for entry in golden_v7.MEANING if entry.worker == _ADOPTED)
MEANING = [
    *map(_owned, golden_v7.MEANING),
    LogEntry(
        _LAST.seq + 1,
        _NAMESPACE,
        _ADOPTED,
        None,
        _LAST.wall_ms + 1,
        _LAST.observed_ms + 1,
        WorkerAdopted(principal="oncall"),
    ),
]
FINAL_WORKERS: dict[str, Worker | None] = {
    name: _owned_worker(worker) for name, worker in golden_v7.FINAL_WORKERS.items()
}
_adopted_worker = FINAL_WORKERS[_ADOPTED]
assert _adopted_worker is not None
FINAL_WORKERS[_ADOPTED] = _adopted_worker._replace(principal="oncall")
STORED_WORKERS = {name: _owned_worker(worker) for name, worker in golden_v7.STORED_WORKERS.items()}
