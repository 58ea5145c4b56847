"""How far a unit of work is, whoever works on it: totals over all workers that reported about it.

Times are wall times: they are for people, and nothing is decided by them.
"""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.errors import UnitNotFound
from liveness.domain.events import ProgressForgotten, ProgressReported

UNIT_BYTES_MAX = 200
REPORT_ID_BYTES_MAX = 128
REPORT_IDS_MAX = 100
"""How many reports a unit remembers by their ids."""
ERROR_BYTES_MAX = 1_024
TOTAL_MAX = 2**63 - 1


class UnitKey(NamedTuple):
    namespace: str
    unit: str


class UnitProgress(NamedTuple):
    created_wall_ms: int
    updated_wall_ms: int
    successes: int = 0
    errors: int = 0
    last_success_wall_ms: int = 0
    """0 if there was none, like the time of the last error."""
    last_success_worker: str = ""
    last_error_wall_ms: int = 0
    last_error: str = ""
    last_error_worker: str = ""
    failing: bool = False
    """Whether the last report was an error."""
    report_ids: tuple[str, ...] = ()
    """Of the last reports that had one, oldest first."""


class ProgressReport(NamedTuple):
    worker: str
    successes: int
    error: str
    """Empty if there was none."""
    report_id: str
    """Empty: the report is counted each time it comes."""
    errors: int = 0
    """How many, if there was more than one."""

    @property
    def error_count(self) -> int:
        return max(self.errors, 1) if self.error else 0


def name_of_unit(unit: str) -> str:
    """The name that chooses the unit's shard. A worker's key or a workflow's id may be the same; they share nothing but the
    shard."""
    return f"unit:{unit}"


def report(progress: UnitProgress | None, key: UnitKey, report: ProgressReport) -> ProgressReported | None:
    """Decide: None if the report was counted before."""
    if progress is not None and report.report_id and report.report_id in progress.report_ids:
        return None
    return ProgressReported(
        unit=key.unit,
        worker=report.worker,
        successes=report.successes,
        error=cut_error(report.error),
        report_id=report.report_id,
        errors=report.errors,
    )


def forget(progress: UnitProgress | None, key: UnitKey, reason: str, by: str) -> ProgressForgotten:
    if progress is None:
        raise UnitNotFound(unit=key.unit, namespace=key.namespace)
    return ProgressForgotten(unit=key.unit, reason=reason, by=by)


def evolve(
    progress: UnitProgress | None, event: ProgressReported | ProgressForgotten, wall_ms: int
) -> UnitProgress | None:
    """`wall_ms`: the wall time that the log has for the event."""
    if isinstance(event, ProgressForgotten):
        return None
    before = progress or UnitProgress(wall_ms, wall_ms)
    after = before._replace(
        updated_wall_ms=wall_ms,
        successes=min(before.successes + event.successes, TOTAL_MAX),
        failing=bool(event.error),
    )
    if event.successes:
        after = after._replace(last_success_wall_ms=wall_ms, last_success_worker=event.worker)
    if event.error:
        after = after._replace(
            errors=min(before.errors + max(event.errors, 1), TOTAL_MAX),
            last_error_wall_ms=wall_ms,
            last_error=event.error,
            last_error_worker=event.worker,
        )
    if event.report_id:
        after = after._replace(report_ids=(*before.report_ids, event.report_id)[-REPORT_IDS_MAX:])
    return after


def cut_error(text: str) -> str:
    """The first `ERROR_BYTES_MAX` bytes, without half a character at the end."""
    if len(text) * 4 <= ERROR_BYTES_MAX:
        return text
    return text.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
