"""When many deaths are a storm."""

from __future__ import annotations

import pytest

from liveness.domain.storm import is_storm


@pytest.mark.parametrize(
    ("deaths", "left", "storm"),
    [
        (0, 0, False),
        (19, 0, False),  # everybody, but few
        (20, 0, True),
        (20, 46, True),  # 20 of 66
        (20, 47, False),  # 20 of 67: less than 30 %
        (300, 700, False),  # exactly 30 %
        (301, 699, True),
        (100, 100_000, False),
    ],
)
def test_a_storm_is_many_and_a_large_part_of_those_who_were_there(
    deaths: int, left: int, storm: bool
) -> None:
    assert is_storm(deaths, left) is storm
