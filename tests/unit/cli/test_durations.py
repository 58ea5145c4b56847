from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.cli.durations import format_ms, from_ms, parse_ms, to_ms
from liveness.domain.policy import DURATION_MS_MAX

durations_ms = st.integers(0, DURATION_MS_MAX)


@given(durations_ms)
def test_a_formatted_duration_parses_to_the_same_value(ms: int) -> None:
    assert parse_ms(format_ms(ms)) == ms


@given(durations_ms)
def test_a_duration_round_trips_through_proto(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms


@given(st.text(max_size=20))
def test_any_text_parses_to_a_valid_duration_or_none(text: str) -> None:
    ms = parse_ms(text)
    assert ms is None or 0 <= ms <= DURATION_MS_MAX


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("0s", 0), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000),
        ("30d", 2_592_000_000), ("1h30m", 5_400_000), ("1.5s", 1_500), ("36500d", DURATION_MS_MAX),
    ],
)  # fmt: skip
def test_durations_with_units_are_parsed(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "1 s", "1S", "1w", "0.1ms", "36501d", "1e3s", "١s", "1s,", "9" * 200 + "s"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    assert parse_ms(text) is None


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (250, "250ms"), (90_000, "1m30s"), (3_600_000, "1h"), (86_400_000, "1d")]
)
def test_durations_are_formatted_in_the_largest_units(ms: int, text: str) -> None:
    assert format_ms(ms) == text
