"""The files in `golden` by version, with the values they decode to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from liveness.domain.activity import Activity
from liveness.domain.concurrency import ConcurrencyLimit
from liveness.domain.death_certificate import Death
from liveness.domain.keys import ActivityId
from liveness.domain.progress import UnitProgress
from liveness.domain.schedule import Schedule
from liveness.domain.worker import BoundActivity, Worker
from liveness.store.codec import LogEntry, LogRow, RenewalState
from tests.unit.store import (
    golden_v1,
    golden_v2,
    golden_v3,
    golden_v4,
    golden_v5,
    golden_v6,
    golden_v7,
    golden_v8,
    golden_v9,
    golden_v10,
    golden_v11,
    golden_v12,
    golden_v13,
)

GOLDEN = Path(__file__).parent / "golden"
SHARD = 5


@cache
def _read_rows(name: str) -> list[LogRow]:
    lines = (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [LogRow(**json.loads(line)) for line in lines]


class Version(NamedTuple):
    """The values that the files of one version decode to."""

    name: str
    meaning: list[LogEntry]
    workers: Mapping[str, Worker | None]
    activities: Mapping[ActivityId, Activity]
    stored_workers: Mapping[str, Worker | None]
    stored_activities: Mapping[str, Activity]
    stored_binding: BoundActivity
    renewal_states: list[RenewalState]
    settings: dict[str, float]
    take_overs: tuple[int, ...]
    deaths: list[Death]
    stored_progress: Mapping[str, UnitProgress]
    stored_schedules: Mapping[str, Schedule]
    stored_limits: Mapping[str, ConcurrencyLimit]

    def rows(self) -> list[LogRow]:
        return _read_rows(self.name)

    def forms(self) -> dict[str, str]:
        forms: dict[str, str] = json.loads((GOLDEN / f"{self.name}-rows.json").read_text(encoding="utf-8"))
        return forms


VERSIONS = [
    Version(
        name,
        known.MEANING,
        known.FINAL_WORKERS,
        known.FINAL_ACTIVITIES,
        known.STORED_WORKERS,
        known.STORED_ACTIVITIES,
        known.STORED_BINDING,
        known.PULSES,
        known.SETTINGS,
        known.TAKE_OVERS,
        getattr(known, "DEATHS", []),
        getattr(known, "STORED_PROGRESS", {}),
        getattr(known, "STORED_SCHEDULES", {}),
        getattr(known, "STORED_LIMITS", {}),
    )
    for name, known in (
        ("v1", golden_v1),
        ("v2", golden_v2),
        ("v3", golden_v3),
        ("v4", golden_v4),
        ("v5", golden_v5),
        ("v6", golden_v6),
        ("v7", golden_v7),
        ("v8", golden_v8),
        ("v9", golden_v9),
        ("v10", golden_v10),
        ("v11", golden_v11),
        ("v12", golden_v12),
        ("v13", golden_v13),
    )
]
