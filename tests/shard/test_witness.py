"""What a node remembers of workers' last moments: in memory, bounded, and cheap."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.death import Company, Stall
from liveness.domain.keys import WorkerKey
from liveness.shard import obituaries as obituaries_module
from liveness.shard.obituaries import Obituaries
from liveness.shard.rhythms import KEPT, Rhythms
from liveness.shard.stalls import STALLS_KEPT, Stalls
from liveness.shard.witness import DRIFT_MS, WallTimes

# -- rhythms


def test_the_last_heartbeats_of_each_worker_are_kept() -> None:
    rhythms = Rhythms(10)
    for at_ms in range(1_000, 11_000, 1_000):
        rhythms.heard([7, 8], at_ms)
        rhythms.heard([9], at_ms + 1)
    assert rhythms.of(7, 10_000) == (5_000, 6_000, 7_000, 8_000, 9_000, 10_000)
    assert len(rhythms.of(7, 10_000)) == KEPT
    assert rhythms.of(9, 10_001)[-2:] == (9_001, 10_001)


def test_the_first_moment_of_all_is_a_time_too() -> None:
    rhythms = Rhythms(10)
    rhythms.begin(7, 0)
    rhythms.heard([7], 5)
    assert rhythms.of(7, 5) == (0, 5)


def test_times_stay_exact_for_decades() -> None:
    rhythms, year_ms = Rhythms(10), 366 * 86_400_000
    rhythms.heard([7], 33 * year_ms)
    rhythms.heard([7], 34 * year_ms)
    assert rhythms.of(7, 34 * year_ms) == (33 * year_ms, 34 * year_ms)


def test_a_heartbeat_whose_row_is_still_open_is_known_from_its_worker() -> None:
    rhythms = Rhythms(10)
    rhythms.heard([7], 1_000)
    assert rhythms.of(7, 1_500) == (1_000, 1_500)


def test_a_row_counts_as_heard_when_its_last_heartbeat_was_and_the_workers_own_time_wins() -> None:
    rhythms = Rhythms(10)
    rhythms.heard([7], 1_000)
    rhythms.heard([7, 8], 2_003)
    assert rhythms.of(7, 2_001) == (1_000, 2_001)


def test_of_who_is_not_known_there_is_the_last_heartbeat() -> None:
    assert Rhythms(10).of(7, 500) == (500,)


def test_a_lease_begins_a_rhythm_of_its_own() -> None:
    rhythms = Rhythms(10)
    rhythms.heard([7], 1_000)
    rhythms.begin(7, 5_000)
    rhythms.heard([7], 6_000)
    assert rhythms.of(7, 6_000) == (5_000, 6_000)


def test_who_comes_when_it_is_full_has_none_and_who_leaves_makes_room() -> None:
    rhythms = Rhythms(2)
    rhythms.heard([1, 2, 3], 1_000)
    rhythms.heard([1, 2, 3], 2_000)
    assert len(rhythms) == 2
    assert rhythms.of(2, 2_000) == (1_000, 2_000)
    assert rhythms.of(3, 2_000) == (2_000,)
    rhythms.forget(1)
    rhythms.heard([3], 3_000)
    rhythms.heard([3], 4_000)
    assert rhythms.of(3, 4_000) == (3_000, 4_000)


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
    wall = WallTimes()
    wall.note(1_000, 901_000)
    wall.note(2_000, 902_000)
    # It stood still for a minute, of which the observed clock counted a second.
    wall.note(3_000, 962_000)
    assert (wall.of(1_500), wall.of(2_999), wall.of(3_000), wall.of(4_000)) == (
        901_500,
        902_999,
        962_000,
        963_000,
    )
    assert wall.of(400) == 900_400


def test_clocks_that_drift_apart_slowly_are_followed() -> None:
    wall = WallTimes()
    for second in range(1_000):
        wall.note(second * 1_000, second * 1_001)
    assert abs(wall.of(999_000) - 999_999) <= DRIFT_MS


# -- obituaries


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=10_000_000)


@pytest.fixture
def obituaries(clock: ManualClock) -> Obituaries:
    return Obituaries(clock)


def w(name: int | str, namespace: str = "orders") -> WorkerKey:
    return WorkerKey(namespace, str(name))


def test_company_is_who_else_died_by_host_build_and_namespace(obituaries: Obituaries) -> None:
    obituaries.enter(w(1), "db-3", "b7")
    obituaries.enter(w(2), "db-3", "b8")
    obituaries.enter(w(3), "db-4", "b7")
    obituaries.enter(w(4), "db-3", "b7")
    assert obituaries.company(w(1)) == Company(same_host=2, same_build=2, same_namespace=3)
    assert obituaries.company(w(3)) == Company(same_host=0, same_build=2, same_namespace=3)


def test_who_tells_no_host_and_no_build_has_none_in_common(obituaries: Obituaries) -> None:
    obituaries.enter(w(1), "", "")
    obituaries.enter(w(2), "", "")
    assert obituaries.company(w(1)) == Company(same_namespace=1)
    assert obituaries.around(w(1), "", "", 10_000_000) == Company(same_namespace=1)


def test_nothing_crosses_namespaces(obituaries: Obituaries) -> None:
    obituaries.enter(w(1), "db-3", "b7")
    obituaries.enter(w(1, "billing"), "db-3", "b7")
    assert obituaries.company(w(1)) == Company()
    assert obituaries.around(w(1), "db-3", "b7", 10_000_000) == Company()
    assert obituaries.last_minute("orders") == obituaries.last_minute("billing") == 1
    assert obituaries.last_minute("elsewhere") == 0


def test_a_worker_that_dies_again_and_again_is_one(obituaries: Obituaries, clock: ManualClock) -> None:
    for _ in range(5):
        clock.move(1_000)
        obituaries.enter(w(1), "db-3", "b7")
        obituaries.enter(w(1), "db-3", "b7")
    obituaries.enter(w(2), "db-3", "b7")
    assert obituaries.company(w(2)) == Company(1, 1, 1)
    assert obituaries.company(w(1)) == Company(1, 1, 1)
    assert obituaries.last_minute("orders") == 2


def test_company_is_of_one_minute(obituaries: Obituaries, clock: ManualClock) -> None:
    obituaries.enter(w(1), "db-3", "b7")
    clock.move(30_000)
    obituaries.enter(w(2), "db-3", "b7")
    clock.move(30_000)
    obituaries.enter(w(3), "db-3", "b7")
    assert obituaries.company(w(3)).same_host == 2
    clock.move(1)
    assert obituaries.last_minute("orders") == 2
    assert obituaries.company(w(3)).same_host == 1
    clock.move(59_999)
    assert obituaries.last_minute("orders") == 1
    clock.move(1)
    assert obituaries.last_minute("orders") == 0
    assert obituaries.company(w(3)) == Company()


def test_afterwards_those_before_and_after_a_death_are_counted(
    obituaries: Obituaries, clock: ManualClock
) -> None:
    for n in range(5):
        obituaries.enter(w(n), "db-3", f"b{n % 2}")
        clock.move(30_000)
    assert obituaries.around(w(2), "db-3", "b0", 10_060_000) == Company(4, 2, 4)
    assert obituaries.around(w(0), "db-3", "b0", 10_000_000) == Company(2, 1, 2)
    assert obituaries.around(w(9), "db-4", "b1", 10_000_000) == Company(0, 1, 3)


def test_a_wall_clock_that_jumps_does_not_lose_count(obituaries: Obituaries, clock: ManualClock) -> None:
    obituaries.enter(w(1), "db-3", "b7")
    clock.jump_wall(-3_600_000)
    obituaries.enter(w(2), "db-3", "b7")
    assert obituaries.company(w(2)).same_host == 1
    clock.jump_wall(7_200_000)
    assert obituaries.last_minute("orders") == 2


def test_of_very_many_the_last_are_kept_and_counted(
    obituaries: Obituaries, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obituaries_module, "KEPT", 10)
    for n in range(25):
        obituaries.enter(w(n), "db-3", "b7")
    assert obituaries.company(w(24)) == Company(9, 9, 9)
    assert obituaries.around(w(24), "db-3", "b7", clock.wall_ms()) == Company(9, 9, 9)
    clock.move(60_001)
    assert obituaries.last_minute("orders") == 0
    assert not obituaries._by_host
    assert not obituaries._by_build
