"""Histograms with fixed buckets: cheap to keep, and those of several servers can be added up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_BUCKETS_S = (
    0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATENESS_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0)
SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        """Inclusive upper bounds of the buckets; one more bucket holds larger values."""
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, count: int) -> None:
        """The same value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


def quantile(bounds: Sequence[float], counts: Sequence[int], quantile_rank: float) -> float:
    """Returns the quantile, interpolated linearly within its bucket; 0 if nothing was counted."""
    total = sum(counts)
    if not total:
        return 0.0
    rank, below = quantile_rank * total, 0
    for index, bound in enumerate(bounds):
        within = counts[index]
        if within and below + within >= rank:
            floor = bounds[index - 1] if index else 0.0
            return floor + (bound - floor) * (rank - below) / within
        below += within
    return bounds[-1]
