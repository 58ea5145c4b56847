"""Sparklines: numbers rendered as bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.cli.fleet.sparkline import BARS, GAP, sparkline

numbers = st.lists(st.none() | st.floats(0, 1e12), max_size=400)


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 10, ""),
        ([1], 0, ""),
        ([0, 0, 0], 10, "▁▁▁"),
        ([0, 1, 1_000], 10, "▁▂█"),
        ([1, 2, 3, 4], 4, "▃▅▆█"),
        ([None, 5, None], 10, " █ "),
        ([0, 9, 0, 0, 0, 0], 3, "█▁▁"),
        ([0, 0, 9, 0, 0], 3, "▁█▁"),
        ([None, None, 9, 0], 2, " █"),
    ],
)
def test_numbers_become_bars(values: list[float | None], width: int, line: str) -> None:
    assert sparkline(values, width) == line


@given(numbers, st.integers(0, 80))
def test_a_sparkline_never_exceeds_its_width(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) <= width
    assert set(line) <= {*BARS, GAP}


@given(numbers, st.integers(1, 80))
def test_only_zero_is_drawn_as_the_lowest_bar(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    known = [value for value in values if value is not None]
    assert (set(line) <= {BARS[0], GAP}) == (max(known, default=0) <= 0)
    assert (set(line) <= {GAP}) == (not known)
