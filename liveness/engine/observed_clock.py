"""Time that passes only while an owner of the shard listens to heartbeats.

A node's listening time runs with its monotonic clock, but of a commit it counts `COMMIT_MS_MAX` at most: while one
hangs, workers wait for their answers and cannot be expected to heartbeat again. A heartbeat waits for two commits at
most, the one in flight and its own, so that their hanging takes half of the shortest lease and not more.

A shard's observed clock runs with its owner's listening time, but never more than `STEP_MS_MAX` ahead of the last
value known to be durable. So a process that was stopped, a commit that hangs or a database out of reach freezes it,
a crash sets it back by no more than that, and a take-over goes on where the last commit left it.

Why it never runs backwards: let the durable value move from (o, t) to (o', t'), where o' was this clock's reading at
t' >= t. If t' - t <= max, then o' = o + (t' - t), and at any later u: o' + min(u - t', max) >= o + min(u - t, max).
If t' - t > max, then o' = o + max already is the most the old pair could show.
"""

from __future__ import annotations

from liveness.clock import Clock

STEP_MS_MAX = 1_000
COMMIT_MS_MAX = 250
_NEVER_MS = 2**63


class ListeningTime:
    """The listening time of a whole node. All shards share it, because a commit in flight keeps all of them from
    committing."""

    __slots__ = ("_clock", "_excluded_ms", "_frozen_at_ms", "_stopped")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._excluded_ms = 0
        """How much of the monotonic clock's time does not count."""
        self._frozen_at_ms = _NEVER_MS
        """On the monotonic clock: where the count stops for the commit in flight."""
        self._stopped = False

    def now_ms(self) -> int:
        return min(self._clock.monotonic_ms(), self._frozen_at_ms) - self._excluded_ms

    def stop(self) -> None:
        """Stop for good: heartbeats are no longer accepted."""
        self._frozen_at_ms = min(self._frozen_at_ms, self._clock.monotonic_ms())
        self._stopped = True

    def commit_began(self) -> None:
        if not self._stopped:
            self._frozen_at_ms = self._clock.monotonic_ms() + COMMIT_MS_MAX

    def commit_ended(self) -> None:
        if self._stopped:
            return
        self._excluded_ms += max(0, self._clock.monotonic_ms() - self._frozen_at_ms)
        self._frozen_at_ms = _NEVER_MS


class ObservedClock:
    __slots__ = ("_durable_ms", "_since_ms")

    def __init__(self, durable_ms: int, listening_ms: int) -> None:
        self._durable_ms = durable_ms
        self._since_ms = listening_ms

    def now_ms(self, listening_ms: int) -> int:
        elapsed = listening_ms - self._since_ms
        return self._durable_ms + (elapsed if elapsed < STEP_MS_MAX else STEP_MS_MAX)  # noqa: FURB136  # min() is slower

    def mark_durable(self, observed_ms: int, listening_ms: int) -> None:
        """`observed_ms`, read at `listening_ms`, is durable now."""
        self._durable_ms = observed_ms
        self._since_ms = listening_ms

    def age_ms(self, listening_ms: int) -> int:
        """How long ago the durable value was read."""
        return listening_ms - self._since_ms
