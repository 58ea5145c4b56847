"""A quantile from buckets lies in the same bucket as the exact quantile."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.telemetry.histogram import LATENCY_BUCKETS_S, Histogram, quantile

values = st.lists(st.floats(min_value=0, max_value=9.9, allow_nan=False), min_size=1, max_size=200)


@given(values, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(observed: list[float], share: float) -> None:
    histogram = Histogram(LATENCY_BUCKETS_S)
    for value in observed:
        histogram.observe(value)
    exact = sorted(observed)[ceil(share * len(observed)) - 1]
    index = bisect_left(LATENCY_BUCKETS_S, exact)
    found = quantile(histogram.bounds, histogram.counts, share)
    assert (LATENCY_BUCKETS_S[index - 1] if index else 0.0) <= found <= LATENCY_BUCKETS_S[index]


@given(values, values)
def test_counts_of_two_histograms_can_be_added(mine: list[float], theirs: list[float]) -> None:
    first, second, both = (
        Histogram(LATENCY_BUCKETS_S),
        Histogram(LATENCY_BUCKETS_S),
        Histogram(LATENCY_BUCKETS_S),
    )
    for value in mine:
        first.observe(value)
        both.observe(value)
    for value in theirs:
        second.observe(value)
        both.observe(value)
    assert [a + b for a, b in zip(first.counts, second.counts, strict=True)] == both.counts
    assert both.sum == pytest.approx(first.sum + second.sum)


def test_a_value_equal_to_a_bound_counts_in_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]


def test_an_empty_histogram_gives_zero_and_an_overflow_gives_the_last_bound() -> None:
    assert quantile((1.0, 2.0), [0, 0, 0], 0.5) == 0.0
    assert quantile((1.0, 2.0), [0, 0, 5], 0.5) == 2.0
