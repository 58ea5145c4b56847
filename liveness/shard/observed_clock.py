"""Time that passes only while somebody listens.

A shard's observed clock runs with its owner's monotonic clock, but never more than `STEP_MS_MAX` ahead of the last
value known to be durable. So a process that was stopped, a commit that hangs or a database out of reach freezes it,
a crash sets it back by no more than that, and a take-over goes on where the last commit left it.

Why it never runs backwards: let the durable value move from (o, t) to (o', t'), where o' was this clock's reading at
t' >= t. If t' - t <= max, then o' = o + (t' - t), and at any later u: o' + min(u - t', max) >= o + min(u - t, max).
If t' - t > max, then o' = o + max already is the most the old pair could show.
"""

from __future__ import annotations

STEP_MS_MAX = 1_000


class ObservedClock:
    __slots__ = ("_durable_ms", "_since_ms")

    def __init__(self, durable_ms: int, monotonic_ms: int) -> None:
        self._durable_ms = durable_ms
        self._since_ms = monotonic_ms

    def now_ms(self, monotonic_ms: int) -> int:
        elapsed = monotonic_ms - self._since_ms
        return self._durable_ms + (min(STEP_MS_MAX, elapsed))

    def committed(self, observed_ms: int, monotonic_ms: int) -> None:
        """`observed_ms`, read at `monotonic_ms`, is durable now."""
        self._durable_ms = observed_ms
        self._since_ms = monotonic_ms

    def age_ms(self, monotonic_ms: int) -> int:
        """How long ago the durable value was read."""
        return monotonic_ms - self._since_ms
