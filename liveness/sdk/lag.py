"""Whether an event loop still answers: alive, but is it working?"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

from liveness.sdk.ticker import Ticker

PROBE_MS = 500


class LoopWatch:
    """Asks the loop now and then; the lag is how long the last question has gone unanswered."""

    def __init__(self, ticker: Ticker, loop: AbstractEventLoop, report: Callable[[int], None]) -> None:
        self._ticker = ticker
        self._loop = loop
        self._report = report
        self._asked_ms: int | None = None
        self._stopped = False
        ticker.post(self._probe)

    def stop(self) -> None:
        self._stopped = True

    def _probe(self) -> None:
        if self._stopped:
            return
        now_ms, asked_ms = self._ticker.now_ms(), self._asked_ms
        if asked_ms is not None:
            self._report(coarse_lag_ms(now_ms - asked_ms))
        else:
            self._report(0)
            self._asked_ms = now_ms
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed, and nothing can be frozen in it
        self._ticker.at(now_ms + PROBE_MS, self._probe)

    def _answer(self) -> None:
        self._asked_ms = None


def coarse_lag_ms(lag_ms: int) -> int:
    """0 below a quarter of a second, then 0.25, 0.5, 1, 2, 4 … s: a figure that changes rarely."""
    if lag_ms < 250:
        return 0
    return 250 << (lag_ms // 250).bit_length() - 1
