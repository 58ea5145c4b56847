"""The ring keeps the samples of the last half hour, whatever the wall clock does."""

from __future__ import annotations

from liveness.telemetry.sample_ring import INTERVAL_MS, SLOTS, VALUE_MAX, SampleRing, sample_time_ms

NOW_MS = 1_750_000_000_000


def test_samples_are_taken_at_even_seconds() -> None:
    assert [sample_time_ms(NOW_MS + ms) - NOW_MS for ms in (0, 1, 1_999, 2_000, 3_999)] == [
        0,
        0,
        0,
        2_000,
        2_000,
    ]


def test_a_sample_is_found_only_by_its_own_time() -> None:
    ring = SampleRing(1, 3)
    ring.put(NOW_MS, [1, 2, 3])
    found = ring.get(NOW_MS)
    assert found is not None
    assert list(found) == [1, 2, 3]
    assert ring.get(NOW_MS + INTERVAL_MS) is None
    assert ring.get(NOW_MS - INTERVAL_MS * SLOTS) is None


def test_the_ring_keeps_exactly_half_an_hour() -> None:
    ring = SampleRing(1, 1)
    for number in range(SLOTS + 5):
        ring.put(NOW_MS + number * INTERVAL_MS, [number])
    kept = [number for number in range(SLOTS + 5) if ring.get(NOW_MS + number * INTERVAL_MS) is not None]
    assert kept == list(range(5, SLOTS + 5))


def test_a_second_sample_at_the_same_time_replaces_gauges_and_adds_counters() -> None:
    ring = SampleRing(1, 2)
    ring.put(NOW_MS, [5, 10])
    ring.put(NOW_MS, [6, 1])
    assert list(ring.get(NOW_MS) or ()) == [6, 11]


def test_a_value_above_the_maximum_is_capped() -> None:
    ring = SampleRing(0, 1)
    ring.put(NOW_MS, [2**40])
    assert list(ring.get(NOW_MS) or ()) == [VALUE_MAX]
