"""The last half hour in samples. A fixed number of slots, found by time, so that memory is bounded, a gap is a gap, and
the samples of several servers, taken at the same seconds, can be added up."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

INTERVAL_MS = 2_000
RETENTION_MS = 30 * 60_000
SLOTS = RETENTION_MS // INTERVAL_MS
VALUE_MAX = 2**32 - 1

GAUGE_FIELDS = ("active", "inactive", "cleaned_up", "suspects")
"""As of the sample's time."""
COUNTER_FIELDS = (
    "heartbeats", "refused_heartbeats", "registrations", "expiries", "resurrections", "reschedules",
)  # fmt: skip
"""In the interval that ended then."""


def sample_time_ms(wall_ms: int) -> int:
    """The last time at which a sample is taken everywhere."""
    return wall_ms // INTERVAL_MS * INTERVAL_MS


class SampleRing:
    """Rows of so many numbers: `gauge_count` that replace each other, then ones that add up."""

    def __init__(self, gauge_count: int, width: int) -> None:
        self._gauge_count = gauge_count
        self._width = width
        self._times = array("q", bytes(8 * SLOTS))
        self._values = array("I", bytes(array("I").itemsize * SLOTS * width))

    def put(self, at_ms: int, row: Sequence[int]) -> None:
        slot = at_ms // INTERVAL_MS % SLOTS
        start = slot * self._width
        if self._times[slot] == at_ms:  # again, by hand or because the wall clock was set back
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
