"""The values that the golden rows of version 5 decode to: those of version 4 with the wall times of past facts, and the
projection of deaths."""

from __future__ import annotations

from liveness.domain.death_certificate import Death
from liveness.store.codec import RenewalState
from tests.unit.store import golden_v4
from tests.unit.store.golden_v1 import WALL_MS
from tests.unit.store.golden_v4 import (
    FINAL_ACTIVITIES,
    FINAL_WORKERS,
    MEANING,
    SETTINGS,
    STORED_BINDING,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip

PULSES = [
    RenewalState(9, 2, 3_000, 0, 0, False, WALL_MS - 250),
    *(state._replace(wall_offset_ms=WALL_MS) for state in golden_v4.PULSES),
]
STORED_WORKERS = {
    name: worker and worker._replace(wall_offset_ms=WALL_MS)
    for name, worker in golden_v4.STORED_WORKERS.items()
}
STORED_ACTIVITIES = {
    name: activity._replace(since_wall_ms=WALL_MS + activity.since_ms)
    for name, activity in golden_v4.STORED_ACTIVITIES.items()
}
DEATHS = [Death("worker-1", "host-1", "2026.11"), Death("arbeiter \0 ü", "", "")]
