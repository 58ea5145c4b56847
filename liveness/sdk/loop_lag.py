"""Measure how far an event loop lags: a worker whose loop is blocked still sends heartbeats, but does no work."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

from liveness.sdk.scheduler import SchedulerThread

PROBE_MS = 500


class LoopLagProbe:
    """Schedules a probe on the loop at intervals. The lag is the time for which the last probe has not run."""

    def __init__(
        self, scheduler: SchedulerThread, loop: AbstractEventLoop, report: Callable[[int], None]
    ) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self._report = report
        self._probe_sent_ms: int | None = None
        self._stopped = False
        scheduler.call_soon(self._probe)

    def stop(self) -> None:
        self._stopped = True

    def _probe(self) -> None:
        if self._stopped:
            return
        now_ms, probe_sent_ms = self._scheduler.now_ms(), self._probe_sent_ms
        if probe_sent_ms is not None:
            self._report(round_lag_ms(now_ms - probe_sent_ms))
        else:
            self._report(0)
            self._probe_sent_ms = now_ms
            try:
                self._loop.call_soon_threadsafe(self._on_probe_ran)
            except RuntimeError:
                return  # the loop is closed, so it cannot lag
        self._scheduler.call_at(now_ms + PROBE_MS, self._probe)

    def _on_probe_ran(self) -> None:
        self._probe_sent_ms = None


def round_lag_ms(lag_ms: int) -> int:
    """0 below 250 ms, then 0.25, 0.5, 1, 2, 4 … s: a value that changes rarely."""
    if lag_ms < 250:
        return 0
    return 250 << (lag_ms // 250).bit_length() - 1
