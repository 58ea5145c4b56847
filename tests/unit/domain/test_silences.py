"""Which silences are counted, and how they are rounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.policy import DAY_MS
from liveness.domain.silences import (
    KEYS_MAX,
    WATCHED_NAMESPACES_MAX,
    SilenceCounts,
    SilenceKind,
    rounded_silence,
)

HEARTBEATS = SilenceKind.HEARTBEATS
NOW = 20_000 * DAY_MS + 12_345_678


@given(st.integers(2, 10**8), st.integers(1, 2 * 10**8))
def test_a_silence_is_rounded_up_by_little_and_never_to_its_terms(terms_ms: int, silence_ms: int) -> None:
    found = rounded_silence(HEARTBEATS, NOW, terms_ms, silence_ms)
    if silence_ms >= terms_ms:
        assert (found.silence_ms, found.wall_ms) == (silence_ms, NOW // 1_000 * 1_000)
    else:
        assert silence_ms <= found.silence_ms <= min(silence_ms * 17 / 16 + 1, terms_ms - 1)
        assert found.wall_ms == NOW // DAY_MS * DAY_MS


def test_only_silences_of_more_than_half_are_counted_and_equal_ones_together() -> None:
    counts = SilenceCounts(0)
    for silence_ms in (1_000, 15_000, 15_001, 15_002, 29_999):
        counts.record("orders", HEARTBEATS, NOW, 30_000, silence_ms)
    found = counts.take([], 0, NOW)
    assert sorted((key.silence_ms, times) for (_, key), times in found.items()) == [(15_360, 2), (29_999, 1)]
    assert counts.take([], 0, NOW) == {}, "what was taken is not counted again"


def test_the_time_that_workers_live_is_counted_to_the_second() -> None:
    counts = SilenceCounts(500)
    active = [("orders", 3), ("gone", 0)]
    first = counts.take(active, 2_499, NOW)
    assert list(first.values()) == [3], "one second of three workers"
    assert list(counts.take(active, 3_500, NOW).values()) == [6], "the rest of the second before counts now"


def test_counts_are_bounded() -> None:
    counts = SilenceCounts(0)
    for number in range(KEYS_MAX + 10):
        counts.record(f"n{number}", HEARTBEATS, NOW, 100, 90)
    active = [(f"n{number}", 1) for number in range(WATCHED_NAMESPACES_MAX + 10)]
    assert len(counts.take(active, 60_000, NOW)) == KEYS_MAX + WATCHED_NAMESPACES_MAX
