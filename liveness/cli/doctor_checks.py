"""The results of checks by `liveness doctor`, and the checks that both databases share."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from liveness.store.size import Storage


class CheckStatus(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


class CheckResult(NamedTuple):
    check: str
    verdict: CheckStatus
    saw: str
    advice: str = ""
    """Empty if there is nothing to do."""


def ok(check: str, saw: str, advice: str = "") -> CheckResult:
    return CheckResult(check, CheckStatus.OK, saw, advice)


def warning(check: str, saw: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckStatus.WARNING, saw, advice)


def failed(check: str, saw: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckStatus.FAILED, saw, advice)


COMMITS_MEASURED = 20
SLOW_COMMIT_MS = 20.0


def commit_latency(median_s: float, where: str) -> CheckResult:
    ms = median_s * 1_000
    saw = f"{where}; a durable commit takes {ms:.2f} ms (median of {COMMITS_MEASURED})"
    if ms > SLOW_COMMIT_MS:
        return warning("commits", saw, "Heartbeats wait this long for their answer; use a faster disk.")
    return ok("commits", saw)


def schema_revision(current: str | None, oldest_writer: str | None = None) -> CheckResult:
    # Imported late: it is slow, and only needed for an existing database.
    from liveness.store.migrate import Revisions

    revisions = Revisions()
    if current is None:
        return ok("tables", "none yet", "They are created at the first start.")
    if current not in revisions.known and oldest_writer in revisions.known:
        return ok(
            "tables",
            f"revision {current} of a newer version",
            "This version may still serve them; upgrade it soon.",
        )
    if current not in revisions.known:
        return failed(
            "tables",
            f"revision {current}, which this version does not know",
            "Start the version that wrote it, or a newer one.",
        )
    if current != revisions.head:
        return ok(
            "tables", f"revision {current}", "They are brought up to date at the next start; back up before."
        )
    return ok("tables", f"revision {current}, up to date")


def shard_count(stored: str | None, configured: int) -> list[CheckResult]:
    if stored is None:
        return []
    if stored != str(configured):
        return [
            failed(
                "shards",
                f"{stored} in the database, {configured} in the settings",
                f"Start with --shards {stored}.",
            )
        ]
    return [ok("shards", stored)]


DAYS_LEFT_MIN = 4
DAYS_LEFT_LOW = 14


def growth(storage: Storage) -> CheckResult:
    """The growth of the database, and when its disk is full at that growth."""
    size, per_day, days = storage.size, storage.growth_bytes_per_day, storage.days_until_full
    saw = f"{format_bytes(size.used_bytes)} of content"
    if per_day is None:
        return ok("growth", f"{saw}; not known yet", "A server that runs records the size every ten minutes.")
    change = "shrinks" if per_day < 0 else "grows"
    saw += f"; it {change} by {format_bytes(abs(per_day))} a day"
    if days is None:
        return ok("growth", saw)
    saw += f", so the disk is full in {days:,.0f} days"
    if days > DAYS_LEFT_LOW:
        return ok("growth", saw)
    advice = "Make room, keep events for a shorter time (event_retention, binding_retention), or set database_bytes_max."
    return warning("growth", saw, advice) if days > DAYS_LEFT_MIN else failed("growth", saw, advice)


def format_bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1_024:
            return f"{count:.4g} {unit}"
        count /= 1_024
    return f"{count:.1f} GiB"
