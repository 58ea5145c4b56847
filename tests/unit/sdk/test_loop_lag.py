"""The reported lag of an event loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk.loop_lag import round_lag_ms


@pytest.mark.parametrize(
    ("lag_ms", "reported_ms"),
    [(0, 0), (249, 0), (250, 250), (499, 250), (500, 500), (999, 500), (1_000, 1_000), (7_999, 4_000)],
)
def test_small_lags_are_zero_and_others_are_rounded_down_coarsely(lag_ms: int, reported_ms: int) -> None:
    assert round_lag_ms(lag_ms) == reported_ms


@given(st.integers(250, 10**9))
def test_the_reported_lag_is_within_a_factor_of_two(lag_ms: int) -> None:
    assert round_lag_ms(lag_ms) <= lag_ms < 2 * round_lag_ms(lag_ms)
