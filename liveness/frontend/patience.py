"""How long a call goes on being tried, and how long it waits before the next try."""

from __future__ import annotations

from liveness.clock import Clock
from liveness.frontend.routes import Routes

UNARY_MS_MAX = 10_000
"""For calls that bring no deadline."""
TRYING_MS_MAX = 8_000
"""The same, as far as trying again is concerned."""
NOBODY_THERE_MS_MAX = 1_000
"""While no node is known at all: that is no take-over, which would be over soon."""
MARGIN_MS_MAX = 250
PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 320
PAUSE_GROWTH = 1.6


class Patience:
    def __init__(self, clock: Clock, remaining_s: float | None, wait_ms_max: int = 0) -> None:
        """`remaining_s`: until the caller's deadline, if it has one. `wait_ms_max`: what the node may take on purpose."""
        self._clock = clock
        self._began_ms = now_ms = clock.monotonic_ms()
        self._call_ms_max = UNARY_MS_MAX + wait_ms_max
        self._deadline_ms: float | None = None
        self._answered_by_ms: float = now_ms + UNARY_MS_MAX
        self._trying_until_ms: float = now_ms + TRYING_MS_MAX
        if remaining_s is not None:
            left_ms = remaining_s * 1_000
            margin_ms = min(MARGIN_MS_MAX, left_ms / 10)
            self._deadline_ms = now_ms + left_ms
            # Early enough for the last refusal to arrive: it says more than a deadline that passed. And no try begins
            # that has no time to be answered, because nobody could say what became of it.
            self._answered_by_ms = self._deadline_ms - margin_ms
            self._trying_until_ms = self._answered_by_ms - margin_ms
        self._pause_ms: float = PAUSE_MS_MIN

    def timeout_s(self) -> float:
        """What the next try may take."""
        if self._deadline_ms is None:
            return self._call_ms_max / 1_000
        return max(0.001, (self._deadline_ms - self._clock.monotonic_ms()) / 1_000)

    def part_timeout_s(self) -> float:
        """What a try may take that is only a part of the answer: the other parts still have to arrive in time."""
        return max(0.001, (self._answered_by_ms - self._clock.monotonic_ms()) / 1_000)

    async def pause(self, routes: Routes) -> bool:
        """Wait until something is known that was not known before, or for a while. False: the time is over."""
        now_ms = self._clock.monotonic_ms()
        until_ms = self._trying_until_ms
        if not routes.members():
            until_ms = min(until_ms, self._began_ms + NOBODY_THERE_MS_MAX)
        if until_ms <= now_ms:
            return False
        await routes.changed(self._clock, min(self._pause_ms, until_ms - now_ms))
        self._pause_ms = min(self._pause_ms * PAUSE_GROWTH, PAUSE_MS_MAX)
        return self._clock.monotonic_ms() < until_ms
