"""Draw numbers as a row of bars, one character each."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
"""The lowest bar stands only for zero, so that small values differ from zero."""
GAP = " "


def sparkline(values: Sequence[float | None], width: int) -> str:
    """All values in at most `width` characters, the newest at the right; None is a gap. A character that stands for
    several values shows the highest, so that short peaks stay visible."""
    if not values or width <= 0:
        return ""
    values_per_bar = -(-len(values) // width)
    first_width = len(values) % values_per_bar
    starts = (
        [0, *range(first_width, len(values), values_per_bar)]
        if first_width
        else list(range(0, len(values), values_per_bar))
    )
    ends = [*starts[1:], len(values)]
    columns = [_highest(values[start:end]) for start, end in zip(starts, ends, strict=True)]
    top = max((value for value in columns if value is not None), default=0.0)
    return "".join(_bar(value, top) for value in columns)


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _bar(value: float | None, top: float) -> str:
    if value is None:
        return GAP
    if value <= 0:
        return BARS[0]
    return BARS[max(1, round(value / top * (len(BARS) - 1)))]
