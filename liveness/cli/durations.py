"""Durations as people write them: 250ms, 30s, 1h30m, 30d."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from liveness.config.durations import DURATION_RULE as DURATION_RULE
from liveness.config.durations import UNITS_MS
from liveness.config.durations import parse_ms as parse_ms
from liveness.domain.policy import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS


def format_ms(ms: int) -> str:
    """The inverse of `parse_ms`."""
    if ms <= 0:
        return "0s" if ms == 0 else "-" + format_ms(-ms)
    parts = []
    for unit, unit_ms in UNITS_MS.items():
        count, ms = divmod(ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def to_ms(duration: Duration) -> int:
    return duration.seconds * SECOND_MS + duration.nanos // 1_000_000


def from_ms(ms: int) -> Duration:
    return Duration(seconds=ms // SECOND_MS, nanos=ms % SECOND_MS * 1_000_000)


def humanize_ms(ms: int) -> str:
    """A duration for people, in two units at most; not to be parsed: 250 ms, 30.1 s, 5 min, 1 h 30 min."""
    if ms < 0:
        return f"-{humanize_ms(-ms)}"
    if ms < SECOND_MS:
        return f"{ms} ms"
    if ms < MINUTE_MS:
        return f"{round(ms / SECOND_MS, 1):g} s"
    parts = []
    for unit, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", SECOND_MS)):
        count, ms = divmod(ms, unit_ms)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
