"""Successes of one unit over the last minute and the last hour, on the clock of its shard. In memory only."""

from __future__ import annotations

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
_BUCKETS = 60


class _Window:
    """Counts in buckets, which together are as long as the window. The present bucket is not full, so that a count is
    forgotten up to a bucket early."""

    __slots__ = ("_bucket_ms", "_counts", "_last")

    def __init__(self, window_ms: int) -> None:
        self._bucket_ms = window_ms // _BUCKETS
        self._counts: dict[int, int] = {}
        self._last = 0

    def add(self, count: int, now_ms: int) -> None:
        self._forget_old(now_ms)
        self._counts[self._last] = self._counts.get(self._last, 0) + count

    def total(self, now_ms: int) -> int:
        self._forget_old(now_ms)
        return sum(self._counts.values())

    def _forget_old(self, now_ms: int) -> None:
        bucket = now_ms // self._bucket_ms
        if bucket > self._last:
            self._last = bucket
            self._counts = {at: count for at, count in self._counts.items() if at > bucket - _BUCKETS}


class SuccessRates:
    __slots__ = ("_hour", "_minute")

    def __init__(self) -> None:
        self._minute = _Window(MINUTE_MS)
        self._hour = _Window(HOUR_MS)

    def add(self, successes: int, now_ms: int) -> None:
        self._minute.add(successes, now_ms)
        self._hour.add(successes, now_ms)

    def per_minute(self, now_ms: int) -> int:
        return self._minute.total(now_ms)

    def per_hour(self, now_ms: int) -> int:
        return self._hour.total(now_ms)
