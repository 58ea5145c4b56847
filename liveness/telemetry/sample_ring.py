"""Samples of the last half hour. The time of a sample determines its slot, so memory is bounded, missing samples stay
missing, and samples that several servers take at the same second can be added up."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

INTERVAL_MS = 2_000
RETENTION_MS = 30 * 60_000
SLOTS = RETENTION_MS // INTERVAL_MS
VALUE_MAX = 2**32 - 1

GAUGE_FIELDS = ("active", "inactive", "cleaned_up", "suspects", "available_activities")
"""Values at the time of the sample."""
COUNTER_FIELDS = (
    "heartbeats", "refused_heartbeats", "registrations", "expiries", "resurrections", "reschedules",
)  # fmt: skip
"""Counts in the interval that ended at the time of the sample."""


def sample_time_ms(wall_ms: int) -> int:
    """Returns the last sample time; it is the same on all nodes."""
    return wall_ms // INTERVAL_MS * INTERVAL_MS


class SampleRing:
    """Rows of `width` numbers: `gauge_count` gauges, which a second sample of the same time replaces, then counters, which
    it increases."""

    def __init__(self, gauge_count: int, width: int) -> None:
        self._gauge_count = gauge_count
        self._width = width
        self._times = array("q", bytes(8 * SLOTS))
        self._values = array("I", bytes(array("I").itemsize * SLOTS * width))

    def put(self, at_ms: int, row: Sequence[int]) -> None:
        slot = at_ms // INTERVAL_MS % SLOTS
        start = slot * self._width
        if self._times[slot] == at_ms:  # a second sample: taken by hand, or the wall clock was set back
            before = self._values[start + self._gauge_count : start + self._width]
            counted = (a + b for a, b in zip(before, row[self._gauge_count :], strict=True))
            row = [*row[: self._gauge_count], *counted]
        self._times[slot] = at_ms
        self._values[start : start + self._width] = array("I", (min(value, VALUE_MAX) for value in row))

    def get(self, at_ms: int) -> Sequence[int] | None:
        slot = at_ms // INTERVAL_MS % SLOTS
        if self._times[slot] != at_ms:
            return None
        return self._values[slot * self._width : (slot + 1) * self._width]
