"""Clients that cause a log line with every call cannot fill the disk with them."""

from __future__ import annotations

from liveness.clock import ManualClock
from liveness.telemetry.logs import LINES_BURST, LINES_PER_S, LineLimit


def test_lines_beyond_the_rate_are_dropped_and_counted_in_the_next_one() -> None:
    clock = ManualClock()
    limit = LineLimit(clock.monotonic_ms)
    assert [limit.admit("noise") for _ in range(LINES_BURST + 500)] == [0] * LINES_BURST + [None] * 500
    assert limit.admit("another event") == 0
    clock.move(1_000)
    assert [limit.admit("noise") for _ in range(LINES_PER_S)] == [500] + [0] * (LINES_PER_S - 1)
    assert limit.admit("noise") is None
