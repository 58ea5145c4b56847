"""Counts calls by method and status code, with their duration. Plain integers, because this runs for every call."""

from __future__ import annotations

from collections.abc import Iterator

from liveness.telemetry.histogram import Histogram

CALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Fewer than in other histograms: there is one for each method that was called."""
METHODS_MAX = 100
"""More than the contract has. A path beyond that counts as `OTHER`."""
OTHER = "_other"
OK = "OK"
FAILURES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN")
"""The codes that are not the caller's fault. They are shown from the first call on, because a rate needs a first value."""


class MethodStats:
    __slots__ = ("codes", "duration_s")

    def __init__(self) -> None:
        self.codes: dict[str, int] = dict.fromkeys((OK, *FAILURES), 0)
        self.duration_s = Histogram(CALL_BUCKETS_S)

    def record(self, code: str, seconds: float | None) -> None:
        """Count a call that has ended. `seconds`: None for a stream, which lasts as long as its reader likes."""
        codes = self.codes
        codes[code] = codes.get(code, 0) + 1
        if seconds is not None:
            self.duration_s.observe(seconds)

    def record_many(self, code: str, seconds: float, count: int) -> None:
        """Count calls that ended alike, after the same time."""
        self.codes[code] = self.codes.get(code, 0) + count
        self.duration_s.observe_many(seconds, count)

    @property
    def count(self) -> int:
        return sum(self.codes.values())


class CallStats:
    def __init__(self) -> None:
        self._by_path: dict[str, MethodStats] = {}

    def method(self, path: str) -> MethodStats:
        """`path`: as gRPC writes it, /liveness.v1.SERVICE/METHOD."""
        stats = self._by_path.get(path)
        if stats is None:
            if len(self._by_path) >= METHODS_MAX:
                path = OTHER
            stats = self._by_path.setdefault(path, MethodStats())
        return stats

    def record(self, path: str, code: str, seconds: float | None) -> None:
        self.method(path).record(code, seconds)

    def items(self) -> Iterator[tuple[str, MethodStats]]:
        """The methods that were called, as SERVICE/METHOD."""
        for path, stats in self._by_path.items():
            if stats.count:
                yield path.removeprefix("/liveness.v1."), stats
