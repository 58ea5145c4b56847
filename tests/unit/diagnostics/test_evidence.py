"""What a node remembers of workers' last moments: in memory, bounded, and cheap."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.diagnostics import recent_deaths as obituaries_module
from liveness.diagnostics.evidence import DRIFT_MS, WallTimeConverter
from liveness.diagnostics.heartbeat_history import HEARTBEATS_KEPT, HeartbeatHistory
from liveness.diagnostics.recent_deaths import RecentDeaths
from liveness.diagnostics.stalls import STALLS_KEPT, Stalls
from liveness.domain.death_certificate import ConcurrentDeaths, Stall
from liveness.domain.keys import WorkerKey

# -- rhythms


def test_the_last_heartbeats_of_each_worker_are_kept() -> None:
    heartbeat_history = HeartbeatHistory(10)
    for at_ms in range(1_000, 11_000, 1_000):
        heartbeat_history.record([7, 8], at_ms)
        heartbeat_history.record([9], at_ms + 1)
    assert heartbeat_history.of(7, 10_000) == (5_000, 6_000, 7_000, 8_000, 9_000, 10_000)
    assert len(heartbeat_history.of(7, 10_000)) == HEARTBEATS_KEPT
    assert heartbeat_history.of(9, 10_001)[-2:] == (9_001, 10_001)


def test_the_first_moment_of_all_is_a_time_too() -> None:
    heartbeat_history = HeartbeatHistory(10)
    heartbeat_history.start_lease(7, 0)
    heartbeat_history.record([7], 5)
    assert heartbeat_history.of(7, 5) == (0, 5)


def test_times_stay_exact_for_decades() -> None:
    heartbeat_history, year_ms = HeartbeatHistory(10), 366 * 86_400_000
    heartbeat_history.record([7], 33 * year_ms)
    heartbeat_history.record([7], 34 * year_ms)
    assert heartbeat_history.of(7, 34 * year_ms) == (33 * year_ms, 34 * year_ms)


def test_a_heartbeat_whose_row_is_still_open_is_known_from_its_worker() -> None:
    heartbeat_history = HeartbeatHistory(10)
    heartbeat_history.record([7], 1_000)
    assert heartbeat_history.of(7, 1_500) == (1_000, 1_500)


def test_a_row_counts_as_heard_when_its_last_heartbeat_was_and_the_workers_own_time_wins() -> None:
    heartbeat_history = HeartbeatHistory(10)
    heartbeat_history.record([7], 1_000)
    heartbeat_history.record([7, 8], 2_003)
    assert heartbeat_history.of(7, 2_001) == (1_000, 2_001)


def test_of_who_is_not_known_there_is_the_last_heartbeat() -> None:
    assert HeartbeatHistory(10).of(7, 500) == (500,)


def test_a_lease_begins_a_rhythm_of_its_own() -> None:
    heartbeat_history = HeartbeatHistory(10)
    heartbeat_history.record([7], 1_000)
    heartbeat_history.start_lease(7, 5_000)
    heartbeat_history.record([7], 6_000)
    assert heartbeat_history.of(7, 6_000) == (5_000, 6_000)


def test_who_comes_when_it_is_full_has_none_and_who_leaves_makes_room() -> None:
    heartbeat_history = HeartbeatHistory(2)
    heartbeat_history.record([1, 2, 3], 1_000)
    heartbeat_history.record([1, 2, 3], 2_000)
    assert len(heartbeat_history) == 2
    assert heartbeat_history.of(2, 2_000) == (1_000, 2_000)
    assert heartbeat_history.of(3, 2_000) == (2_000,)
    heartbeat_history.forget(1)
    heartbeat_history.record([3], 3_000)
    heartbeat_history.record([3], 4_000)
    assert heartbeat_history.of(3, 4_000) == (3_000, 4_000)


# -- stalls


def test_stalls_are_told_by_when_they_were() -> None:
    stalls = Stalls()
    stalls.add(10_000, 1_000)
    stalls.add(20_000, 2_000)
    assert stalls.between(9_500, 30_000) == [Stall(9_000, 1_000), Stall(18_000, 2_000)]
    assert stalls.between(10_000, 17_999) == []
    assert stalls.between(0, 9_000) == [Stall(9_000, 1_000)]


def test_a_commit_that_hung_because_the_process_stood_still_is_one_stall() -> None:
    stalls = Stalls()
    stalls.add(10_000, 1_000)
    stalls.add(10_050, 1_200)
    assert stalls.between(0, 20_000) == [Stall(8_850, 1_200)]
    stalls.add(10_060, 30)
    assert stalls.between(0, 20_000) == [Stall(8_850, 1_210)]


def test_of_many_stalls_the_last_are_kept() -> None:
    stalls = Stalls()
    for n in range(1, 200):
        stalls.add(n * 10_000, 1_000)
    kept = stalls.between(0, 10**9)
    assert len(kept) == STALLS_KEPT
    assert kept[-1] == Stall(1_989_000, 1_000)


# -- wall times


def test_observed_times_are_told_by_the_wall_clock_of_their_time() -> None:
    wall = WallTimeConverter()
    wall.add_anchor(1_000, 901_000)
    wall.add_anchor(2_000, 902_000)
    # It stood still for a minute, of which the observed clock counted a second.
    wall.add_anchor(3_000, 962_000)
    assert (wall.convert(1_500), wall.convert(2_999), wall.convert(3_000), wall.convert(4_000)) == (
        901_500,
        902_999,
        962_000,
        963_000,
    )
    assert wall.convert(400) == 900_400


def test_clocks_that_drift_apart_slowly_are_followed() -> None:
    wall = WallTimeConverter()
    for second in range(1_000):
        wall.add_anchor(second * 1_000, second * 1_001)
    assert abs(wall.convert(999_000) - 999_999) <= DRIFT_MS


# -- obituaries


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=10_000_000)


@pytest.fixture
def recent_deaths(clock: ManualClock) -> RecentDeaths:
    return RecentDeaths(clock)


def w(name: int | str, namespace: str = "orders") -> WorkerKey:
    return WorkerKey(namespace, str(name))


def test_company_is_who_else_died_by_host_build_and_namespace(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(2), "db-3", "b8")
    recent_deaths.record_death(w(3), "db-4", "b7")
    recent_deaths.record_death(w(4), "db-3", "b7")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(same_host=2, same_build=2, same_namespace=3)
    assert recent_deaths.deaths_with(w(3)) == ConcurrentDeaths(same_host=0, same_build=2, same_namespace=3)


def test_who_tells_no_host_and_no_build_has_none_in_common(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "", "")
    recent_deaths.record_death(w(2), "", "")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(same_namespace=1)
    assert recent_deaths.deaths_around(w(1), "", "", 10_000_000) == ConcurrentDeaths(same_namespace=1)


def test_nothing_crosses_namespaces(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(1, "billing"), "db-3", "b7")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths()
    assert recent_deaths.deaths_around(w(1), "db-3", "b7", 10_000_000) == ConcurrentDeaths()
    assert recent_deaths.count_last_minute("orders") == recent_deaths.count_last_minute("billing") == 1
    assert recent_deaths.count_last_minute("elsewhere") == 0


def test_a_worker_that_dies_again_and_again_is_one(recent_deaths: RecentDeaths, clock: ManualClock) -> None:
    for _ in range(5):
        clock.move(1_000)
        recent_deaths.record_death(w(1), "db-3", "b7")
        recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(2), "db-3", "b7")
    assert recent_deaths.deaths_with(w(2)) == ConcurrentDeaths(1, 1, 1)
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(1, 1, 1)
    assert recent_deaths.count_last_minute("orders") == 2


def test_company_is_of_one_minute(recent_deaths: RecentDeaths, clock: ManualClock) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    clock.move(30_000)
    recent_deaths.record_death(w(2), "db-3", "b7")
    clock.move(30_000)
    recent_deaths.record_death(w(3), "db-3", "b7")
    assert recent_deaths.deaths_with(w(3)).same_host == 2
    clock.move(1)
    assert recent_deaths.count_last_minute("orders") == 2
    assert recent_deaths.deaths_with(w(3)).same_host == 1
    clock.move(59_999)
    assert recent_deaths.count_last_minute("orders") == 1
    clock.move(1)
    assert recent_deaths.count_last_minute("orders") == 0
    assert recent_deaths.deaths_with(w(3)) == ConcurrentDeaths()


def test_afterwards_those_before_and_after_a_death_are_counted(
    recent_deaths: RecentDeaths, clock: ManualClock
) -> None:
    for n in range(5):
        recent_deaths.record_death(w(n), "db-3", f"b{n % 2}")
        clock.move(30_000)
    assert recent_deaths.deaths_around(w(2), "db-3", "b0", 10_060_000) == ConcurrentDeaths(4, 2, 4)
    assert recent_deaths.deaths_around(w(0), "db-3", "b0", 10_000_000) == ConcurrentDeaths(2, 1, 2)
    assert recent_deaths.deaths_around(w(9), "db-4", "b1", 10_000_000) == ConcurrentDeaths(0, 1, 3)


def test_a_wall_clock_that_jumps_does_not_lose_count(recent_deaths: RecentDeaths, clock: ManualClock) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    clock.jump_wall(-3_600_000)
    recent_deaths.record_death(w(2), "db-3", "b7")
    assert recent_deaths.deaths_with(w(2)).same_host == 1
    clock.jump_wall(7_200_000)
    assert recent_deaths.count_last_minute("orders") == 2


def test_of_very_many_the_last_are_kept_and_counted(
    recent_deaths: RecentDeaths, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obituaries_module, "KEPT", 10)
    for n in range(25):
        recent_deaths.record_death(w(n), "db-3", "b7")
    assert recent_deaths.deaths_with(w(24)) == ConcurrentDeaths(9, 9, 9)
    assert recent_deaths.deaths_around(w(24), "db-3", "b7", clock.wall_ms()) == ConcurrentDeaths(9, 9, 9)
    clock.move(60_001)
    assert recent_deaths.count_last_minute("orders") == 0
    assert not recent_deaths._by_host
    assert not recent_deaths._by_build
