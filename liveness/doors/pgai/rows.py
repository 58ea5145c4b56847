"""What the follower reads. Nothing in a row is trusted: texts are cut, numbers bounded, and what is no number is 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from liveness.doors.pgai.counting import HEARTBEATS_MAX, TOTAL_MAX, Totals
from liveness.doors.pgai.settings import INTERVALS_PER_LEASE

INTERVAL_MS_MAX = 365 * 86_400_000
LEASE_MS_MIN = 2_000
"""A shorter lease would end between two readings."""
ERROR_BYTES_MAX = 1_024
VERSION_CHARS_MAX = 60
"""Below the 255 bytes of a field of liveness, whatever the characters."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    id: str
    version: str
    started_s: float
    interval_ms: int
    last_heartbeat_s: float
    """By the database's clock. Only compared with other times of that clock."""
    heartbeats: int
    totals: Totals
    last_error: str
    said_goodbye: bool

    @property
    def silence_ms(self) -> int:
        """How long the worker may be silent."""
        return max(INTERVALS_PER_LEASE * self.interval_ms, LEASE_MS_MIN)


@dataclass(frozen=True, slots=True)
class ProgressRow:
    unit: str
    totals: Totals
    success_worker: str
    success_s: float
    error_worker: str
    error_s: float
    last_error: str


@dataclass(frozen=True, slots=True)
class Reading:
    now_s: float
    """By the database's clock, like all times in rows."""
    server_started_s: float
    sessions: frozenset[str]
    """The application names of pgai's connections."""
    processes: tuple[ProcessRow, ...]
    progress: tuple[ProgressRow, ...] = ()
    is_complete: bool = False
    """Whether it has all rows, not only those that may have changed."""
    records_goodbyes: bool = field(default=False)
    """Whether the rows say that a worker has ended in order. Those of a stock installation do not."""


def process_row(row: Mapping[str, Any]) -> ProcessRow | None:
    """None if it cannot be followed."""
    heartbeats = _whole(row["heartbeats"])
    if heartbeats > HEARTBEATS_MAX or row["id"] is None:
        return None
    return ProcessRow(
        id=str(row["id"]),
        version=_line(row["version"], VERSION_CHARS_MAX),
        started_s=_seconds(row["started_s"]),
        interval_ms=int(min(max(_seconds(row["interval_s"]) * 1_000, 0), INTERVAL_MS_MAX)),
        last_heartbeat_s=_seconds(row["last_heartbeat_s"]),
        heartbeats=heartbeats,
        totals=Totals(_whole(row["successes"]), _whole(row["errors"])),
        last_error=_text(row["last_error"]),
        said_goodbye=bool(row["said_goodbye"]),
    )


def progress_row(row: Mapping[str, Any]) -> ProgressRow | None:
    if row["unit"] is None:
        return None
    return ProgressRow(
        unit=str(row["unit"]),
        totals=Totals(_whole(row["successes"]), _whole(row["errors"])),
        success_worker=str(row["success_worker"] or ""),
        success_s=_seconds(row["success_s"]),
        error_worker=str(row["error_worker"] or ""),
        error_s=_seconds(row["error_s"]),
        last_error=_text(row["last_error"]),
    )


def _whole(value: object) -> int:
    return min(max(value, 0), TOTAL_MAX) if isinstance(value, int) else 0


def _seconds(value: object) -> float:
    return value if isinstance(value, float) and isfinite(value) else 0.0


def _line(value: object, chars_max: int) -> str:
    return _CONTROLS.sub(" ", str(value or "")[:chars_max])


def _text(value: object) -> str:
    text = str(value or "")[:ERROR_BYTES_MAX].encode("utf-8", "replace")[:ERROR_BYTES_MAX]
    return text.decode("utf-8", "ignore").replace("\0", "")
