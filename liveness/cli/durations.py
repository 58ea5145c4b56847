"""Durations as people write them: 250ms, 30s, 1h30m, 30d."""

from __future__ import annotations

import re
from decimal import Decimal

from google.protobuf.duration_pb2 import Duration

from liveness.domain.policy import DAY_MS, DURATION_MS_MAX, HOUR_MS, MINUTE_MS, SECOND_MS

UNITS_MS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
DURATION_RULE = "a duration in whole milliseconds like 250ms, 30s, 5m, 1h or 30d, at most 100 years"

_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")


def parse_ms(text: str) -> int | None:
    """None if `text` is not a duration. Zero needs no unit."""
    if text == "0":
        return 0
    if len(text) > 100 or not re.fullmatch(f"(?:{_PART.pattern})+", text):
        return None
    total = sum(Decimal(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))
    return int(total) if total == int(total) and total <= DURATION_MS_MAX else None


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
