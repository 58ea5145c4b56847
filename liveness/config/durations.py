"""Durations as people write them in settings and flags: 250ms, 30s, 1h30m, 30d."""

from __future__ import annotations

import re
from decimal import Decimal

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DURATION_MS_MAX = 100 * 365 * DAY_MS
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
