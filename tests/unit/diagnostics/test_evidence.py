"""The evidence that a node keeps about workers' last heartbeats: in memory, bounded and cheap."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.diagnostics import recent_deaths as recent_deaths_module
from liveness.diagnostics.heartbeat_history import HEARTBEATS_KEPT, HeartbeatHistory
from liveness.diagnostics.recent_deaths import RecentDeaths
from liveness.diagnostics.stalls import STALLS_KEPT, Stalls
from liveness.domain.death_certificate import ConcurrentDeaths, Stall
from liveness.domain.events import LeaseRenewed
from liveness.domain.keys import WorkerKey
from liveness.store.codec import RenewalBatch

# -- heartbeat history


def record(heartbeat_history: HeartbeatHistory, numbers: list[int], wall_ms: int) -> None:
    """Record a row of renewals that all came at one time."""
    heartbeat_history.record(RenewalBatch(numbers, [LeaseRenewed(1, wall_ms, 0, 0)] * len(numbers)), 0)


def test_the_history_keeps_the_last_heartbeats_of_each_worker() -> None:
    heartbeat_history = HeartbeatHistory(10)
    for at_ms in range(1_000, 11_000, 1_000):
        record(heartbeat_history, [7, 8], at_ms)
        record(heartbeat_history, [9], at_ms + 1)
    assert heartbeat_history.times_of(7, 10_000) == (5_000, 6_000, 7_000, 8_000, 9_000, 10_000)
    assert len(heartbeat_history.times_of(7, 10_000)) == HEARTBEATS_KEPT
    assert heartbeat_history.times_of(9, 10_001)[-2:] == (9_001, 10_001)


def test_each_heartbeat_of_a_row_keeps_its_own_wall_time() -> None:
    heartbeat_history = HeartbeatHistory(10)
    renewals = [LeaseRenewed(1, 1_000, 0, 0), LeaseRenewed(1, 1_040, 0, 0)]
    heartbeat_history.record(RenewalBatch([7, 8], renewals), 1_790_000_000_000)
    heartbeat_history.record(RenewalBatch([8, 7], renewals), 1_790_000_060_000)
    assert heartbeat_history.times_of(7, 1_790_000_061_040) == (1_790_000_001_000, 1_790_000_061_040)
    assert heartbeat_history.times_of(8, 1_790_000_061_000) == (1_790_000_001_040, 1_790_000_061_000)


def test_heartbeat_times_stay_exact_until_the_next_century() -> None:
    heartbeat_history, year_2100_ms = HeartbeatHistory(10), 4_102_444_800_000
    for at_ms in (year_2100_ms, year_2100_ms + 1):
        record(heartbeat_history, [7], at_ms)
    assert heartbeat_history.times_of(7, year_2100_ms + 1) == (year_2100_ms, year_2100_ms + 1)


def test_the_history_follows_a_wall_clock_that_is_set_back() -> None:
    heartbeat_history = HeartbeatHistory(10)
    record(heartbeat_history, [7], 9_000)
    record(heartbeat_history, [7], 2_000)
    assert heartbeat_history.times_of(7, 2_000) == (9_000, 2_000)
    assert heartbeat_history.times_of(7, 3_000) == (9_000, 2_000, 3_000)


def test_the_last_heartbeat_of_an_uncommitted_row_is_taken_from_the_worker() -> None:
    heartbeat_history = HeartbeatHistory(10)
    record(heartbeat_history, [7], 1_000)
    assert heartbeat_history.times_of(7, 1_500) == (1_000, 1_500)


def test_an_unknown_worker_has_only_its_last_heartbeat() -> None:
    assert HeartbeatHistory(10).times_of(7, 500) == (500,)


def test_a_new_lease_starts_a_new_history() -> None:
    heartbeat_history = HeartbeatHistory(10)
    record(heartbeat_history, [7], 1_000)
    heartbeat_history.start_lease(7, 5_000)
    record(heartbeat_history, [7], 6_000)
    assert heartbeat_history.times_of(7, 6_000) == (5_000, 6_000)


def test_a_full_history_ignores_new_workers_until_others_are_forgotten() -> None:
    heartbeat_history = HeartbeatHistory(2)
    record(heartbeat_history, [1, 2, 3], 1_000)
    record(heartbeat_history, [1, 2, 3], 2_000)
    assert len(heartbeat_history) == 2
    assert heartbeat_history.times_of(2, 2_000) == (1_000, 2_000)
    assert heartbeat_history.times_of(3, 2_000) == (2_000,)
    heartbeat_history.forget(1)
    record(heartbeat_history, [3], 3_000)
    record(heartbeat_history, [3], 4_000)
    assert heartbeat_history.times_of(3, 4_000) == (3_000, 4_000)


# -- stalls


def test_stalls_are_found_by_their_time() -> None:
    stalls = Stalls()
    stalls.add(10_000, 1_000)
    stalls.add(20_000, 2_000)
    assert stalls.between(9_500, 30_000) == [Stall(9_000, 1_000), Stall(18_000, 2_000)]
    assert stalls.between(10_000, 17_999) == []
    assert stalls.between(0, 9_000) == [Stall(9_000, 1_000)]


def test_overlapping_stalls_are_merged() -> None:
    stalls = Stalls()
    stalls.add(10_000, 1_000)
    stalls.add(10_050, 1_200)
    assert stalls.between(0, 20_000) == [Stall(8_850, 1_200)]
    stalls.add(10_060, 30)
    assert stalls.between(0, 20_000) == [Stall(8_850, 1_210)]


def test_only_the_last_stalls_are_kept() -> None:
    stalls = Stalls()
    for n in range(1, 200):
        stalls.add(n * 10_000, 1_000)
    kept = stalls.between(0, 10**9)
    assert len(kept) == STALLS_KEPT
    assert kept[-1] == Stall(1_989_000, 1_000)


# -- recent deaths


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=10_000_000)


@pytest.fixture
def recent_deaths(clock: ManualClock) -> RecentDeaths:
    return RecentDeaths(clock)


def w(name: int | str, namespace: str = "orders") -> WorkerKey:
    return WorkerKey(namespace, str(name))


def test_concurrent_deaths_are_counted_by_host_build_and_namespace(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(2), "db-3", "b8")
    recent_deaths.record_death(w(3), "db-4", "b7")
    recent_deaths.record_death(w(4), "db-3", "b7")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(same_host=2, same_build=2, same_namespace=3)
    assert recent_deaths.deaths_with(w(3)) == ConcurrentDeaths(same_host=0, same_build=2, same_namespace=3)


def test_workers_without_host_and_build_share_only_the_namespace(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "", "")
    recent_deaths.record_death(w(2), "", "")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(same_namespace=1)
    assert recent_deaths.deaths_around(w(1), "", "", 10_000_000) == ConcurrentDeaths(same_namespace=1)


def test_deaths_in_other_namespaces_are_not_counted(recent_deaths: RecentDeaths) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(1, "billing"), "db-3", "b7")
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths()
    assert recent_deaths.deaths_around(w(1), "db-3", "b7", 10_000_000) == ConcurrentDeaths()
    assert recent_deaths.count_last_minute("orders") == recent_deaths.count_last_minute("billing") == 1
    assert recent_deaths.count_last_minute("unknown") == 0


def test_a_worker_that_dies_repeatedly_counts_once(recent_deaths: RecentDeaths, clock: ManualClock) -> None:
    for _ in range(5):
        clock.move(1_000)
        recent_deaths.record_death(w(1), "db-3", "b7")
        recent_deaths.record_death(w(1), "db-3", "b7")
    recent_deaths.record_death(w(2), "db-3", "b7")
    assert recent_deaths.deaths_with(w(2)) == ConcurrentDeaths(1, 1, 1)
    assert recent_deaths.deaths_with(w(1)) == ConcurrentDeaths(1, 1, 1)
    assert recent_deaths.count_last_minute("orders") == 2


def test_concurrent_deaths_are_those_of_one_minute(recent_deaths: RecentDeaths, clock: ManualClock) -> None:
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


def test_deaths_around_a_time_count_those_before_and_after_it(
    recent_deaths: RecentDeaths, clock: ManualClock
) -> None:
    for n in range(5):
        recent_deaths.record_death(w(n), "db-3", f"b{n % 2}")
        clock.move(30_000)
    assert recent_deaths.deaths_around(w(2), "db-3", "b0", 10_060_000) == ConcurrentDeaths(4, 2, 4)
    assert recent_deaths.deaths_around(w(0), "db-3", "b0", 10_000_000) == ConcurrentDeaths(2, 1, 2)
    assert recent_deaths.deaths_around(w(9), "db-4", "b1", 10_000_000) == ConcurrentDeaths(0, 1, 3)


def test_a_jump_of_the_wall_clock_does_not_change_the_counts(
    recent_deaths: RecentDeaths, clock: ManualClock
) -> None:
    recent_deaths.record_death(w(1), "db-3", "b7")
    clock.jump_wall(-3_600_000)
    recent_deaths.record_death(w(2), "db-3", "b7")
    assert recent_deaths.deaths_with(w(2)).same_host == 1
    clock.jump_wall(7_200_000)
    assert recent_deaths.count_last_minute("orders") == 2


def test_only_the_last_deaths_are_kept_and_counted(
    recent_deaths: RecentDeaths, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_deaths_module, "KEPT", 10)
    for n in range(25):
        recent_deaths.record_death(w(n), "db-3", "b7")
    assert recent_deaths.deaths_with(w(24)) == ConcurrentDeaths(9, 9, 9)
    assert recent_deaths.deaths_around(w(24), "db-3", "b7", clock.wall_ms()) == ConcurrentDeaths(9, 9, 9)
    clock.move(60_001)
    assert recent_deaths.count_last_minute("orders") == 0
    assert not recent_deaths._by_host
    assert not recent_deaths._by_build
