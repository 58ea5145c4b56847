"""The detection of a storm, and how it delays the expiry of leases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import InvalidField
from liveness.domain.policy import DEFAULT_POLICY, Policy, override_policy
from liveness.domain.storm import STORM_WINDOW_MS, ExpiryPacer, Storm, StormPhase, held_until_ms, is_storm


@pytest.mark.parametrize(
    ("deaths", "left", "storm"),
    [
        (0, 0, False),
        (19, 0, False),  # all workers, but too few of them
        (20, 0, True),
        (20, 46, True),  # 20 of 66
        (20, 47, False),  # 20 of 67: less than 30 %
        (300, 700, False),  # exactly 30 %
        (301, 699, True),
        (100, 100_000, False),
    ],
)
def test_a_storm_needs_many_deaths_and_a_large_share_of_all_workers(
    deaths: int, left: int, storm: bool
) -> None:
    assert is_storm(deaths, left) is storm


def test_the_policy_of_a_namespace_sets_both_storm_thresholds() -> None:
    cautious = Policy(storm_min_workers=2, storm_share=0.0)
    assert is_storm(2, 1_000_000, cautious)
    assert not is_storm(1, 0, cautious)
    assert not is_storm(1_000, 0, Policy(storm_share=1.0)), "deaths can never exceed all workers"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storm_min_workers", 0),
        ("storm_min_workers", 1.5),
        ("storm_share", 1.01),
        ("storm_pace", 0.5),
        ("storm_hold_ms", 2**60),
    ],
)
def test_invalid_storm_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidField, match=name.removesuffix("_ms")):
        override_policy(DEFAULT_POLICY, {name: value})


# -- phases of a storm

STORM = Storm(began_ms=1_000, lease_ms=30_000, held_count=100)


@pytest.mark.parametrize(
    ("storm", "now_ms", "policy", "phase"),
    [
        (STORM, 1_000, DEFAULT_POLICY, StormPhase.HOLDING),
        (STORM, 30_999, DEFAULT_POLICY, StormPhase.HOLDING),
        (STORM, 31_000, DEFAULT_POLICY, StormPhase.DRAINING),  # the longest lease of the held workers is over
        (STORM, 5_999, Policy(storm_hold_ms=5_000), StormPhase.HOLDING),
        (STORM, 6_000, Policy(storm_hold_ms=5_000), StormPhase.DRAINING),
        (STORM, 1_000, Policy(storm_hold_ms=0), StormPhase.RELEASED),  # disabled during the storm
        (STORM._replace(returned=89), 2_000, DEFAULT_POLICY, StormPhase.HOLDING),
        (
            STORM._replace(returned=90),
            2_000,
            DEFAULT_POLICY,
            StormPhase.DRAINING,
        ),  # nine of ten workers returned
        (STORM._replace(released_ms=1_500), 2_000, DEFAULT_POLICY, StormPhase.RELEASED),
        (STORM._replace(released_ms=1_500), 90_000, DEFAULT_POLICY, StormPhase.RELEASED),
        (Storm(began_ms=1_000), 1_000, DEFAULT_POLICY, StormPhase.DRAINING),  # no worker is held
    ],
)
def test_the_phase_of_a_storm_follows_from_time_returns_and_policy(
    storm: Storm, now_ms: int, policy: Policy, phase: StormPhase
) -> None:
    assert storm.phase(now_ms, policy) is phase


def test_a_storm_is_over_when_no_worker_is_held() -> None:
    assert not STORM.is_over(1, 999_999)
    assert STORM.is_over(0, 1_001)


def test_a_released_storm_stays_released_for_the_counting_window() -> None:
    released = STORM._replace(released_ms=2_000)
    assert not released.is_over(0, 2_000 + STORM_WINDOW_MS - 1)
    assert released.is_over(0, 2_000 + STORM_WINDOW_MS)


# -- bounds

leases = st.integers(1_000, 3_600_000)
times = st.integers(0, 2**40)


@given(due_ms=times, granted_ms=leases, hold_ms=st.integers(0, 2**42))
def test_no_worker_is_held_for_longer_than_its_own_lease(due_ms: int, granted_ms: int, hold_ms: int) -> None:
    until_ms = held_until_ms(due_ms, granted_ms, Policy(storm_hold_ms=hold_ms))
    assert due_ms <= until_ms <= due_ms + min(granted_ms, hold_ms)


@given(
    began_ms=times,
    caught=st.lists(st.tuples(leases, st.integers(0, 100_000)), min_size=1, max_size=50),
    hold_ms=st.integers(1, 2**42),
)
def test_a_storm_holds_no_longer_than_the_longest_lease_however_many_leases_fall_due(
    began_ms: int, caught: list[tuple[int, int]], hold_ms: int
) -> None:
    policy, storm, now_ms = Policy(storm_hold_ms=hold_ms), Storm(began_ms), began_ms
    longest_ms = max(lease_ms for lease_ms, _ in caught)
    for lease_ms, later_ms in caught:
        storm = storm._replace(held_count=storm.held_count + 1, lease_ms=max(storm.lease_ms, lease_ms))
        now_ms += later_ms
        if storm.phase(now_ms, policy) is StormPhase.HOLDING:
            assert now_ms < began_ms + min(hold_ms, longest_ms)
    assert storm.phase(began_ms + longest_ms, policy) is StormPhase.DRAINING


@given(
    arrivals=st.lists(st.integers(0, 2_000), min_size=1, max_size=200),
    pace=st.integers(1, 5_000),
    start_ms=times,
)
def test_the_pacer_keeps_its_rate_and_delays_a_worker_only_by_those_before_it(
    arrivals: list[int], pace: int, start_ms: int
) -> None:
    pacer, now_ms, turns = ExpiryPacer(), start_ms, []
    for number, later_ms in enumerate(arrivals):
        now_ms += later_ms
        turn_ms, pacer = pacer.reserve(now_ms, pace)
        assert now_ms <= turn_ms <= now_ms + number * 1_000 / pace
        turns.append(turn_ms)
    assert turns == sorted(turns)
    for first in range(len(turns)):
        within_a_second = [turn for turn in turns[first:] if turn < turns[first] + 1_000]
        assert len(within_a_second) <= pace + 1


def test_a_pacer_without_a_rate_delays_no_worker() -> None:
    pacer = ExpiryPacer()
    for _ in range(1_000):
        turn_ms, pacer = pacer.reserve(5, 0)
        assert turn_ms == 5
