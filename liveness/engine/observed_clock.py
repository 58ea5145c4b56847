"""Time that passes only while an owner of the shard listens to heartbeats.

A node's listening time runs with its monotonic clock, but of a commit it counts `COMMIT_MS_MAX` at most: while one
hangs, workers wait for their answers and cannot be expected to heartbeat again. A heartbeat waits for two commits at
most, the one in flight and its own, so that their hanging takes half of the shortest lease and not more. Of a probe
(`receive_progress.py`) it counts `PROBE_MS_MAX` at most: while one is not answered, heartbeats wait unheard as well.

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
PROBE_MS_MAX = 250
_NEVER_MS = 2**63


class ListeningTime:
    """The listening time of a whole node. All shards share it, because a commit in flight keeps all of them from
    committing, and all their heartbeats come through one listener."""

    __slots__ = (
        "_clock",
        "_commit_limit_ms",
        "_excluded_ms",
        "_frozen_at_ms",
        "_probe_limit_ms",
        "is_stopped",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._excluded_ms = 0
        """How much of the monotonic clock's time does not count."""
        self._commit_limit_ms = _NEVER_MS
        """On the monotonic clock: where the count stops for the commit in flight."""
        self._probe_limit_ms = _NEVER_MS
        """Where it stops for the oldest probe without an answer."""
        self._frozen_at_ms = _NEVER_MS
        """The earlier of the two."""
        self.is_stopped = False

    def now_ms(self) -> int:
        return min(self._clock.monotonic_ms(), self._frozen_at_ms) - self._excluded_ms

    def stop(self) -> None:
        """Stop for good: heartbeats are no longer accepted."""
        self._frozen_at_ms = min(self._frozen_at_ms, self._clock.monotonic_ms())
        self.is_stopped = True

    def commit_began(self) -> None:
        self._set_limits(self._clock.monotonic_ms() + COMMIT_MS_MAX, self._probe_limit_ms)

    def commit_ended(self) -> None:
        self._set_limits(_NEVER_MS, self._probe_limit_ms)

    def probe_sent(self) -> None:
        """A probe is under way. One that follows a failed probe does not move the limit."""
        if self._probe_limit_ms == _NEVER_MS:
            self._set_limits(self._commit_limit_ms, self._clock.monotonic_ms() + PROBE_MS_MAX)

    def probe_ended(self) -> None:
        self._set_limits(self._commit_limit_ms, _NEVER_MS)

    def _set_limits(self, commit_limit_ms: int, probe_limit_ms: int) -> None:
        """Change where the count stops. It goes on from where it is now, so time for which it stood still is excluded."""
        if self.is_stopped:
            return
        listening_ms = self.now_ms()
        self._commit_limit_ms, self._probe_limit_ms = commit_limit_ms, probe_limit_ms
        self._frozen_at_ms = min(commit_limit_ms, probe_limit_ms)
        self._excluded_ms = min(self._clock.monotonic_ms(), self._frozen_at_ms) - listening_ms


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
