"""Which deaths are one incident, and what is named as its cause."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.domain.incidents import (
    CHANCE_MAX,
    Living,
    Trait,
    TraitKind,
    WorkerDeath,
    chance_of,
    find_cause,
    find_incident,
    group_deaths,
)
from liveness.domain.policy import DEFAULT_POLICY

BUILD = Trait(TraitKind.BUILD, "", "b7")


def host(name: str) -> Trait:
    return Trait(TraitKind.HOST, "", name)


def zone(name: str) -> Trait:
    return Trait(TraitKind.LABEL, "zone", name)


def died(worker: str, *traits: Trait, at_ms: int = 0) -> WorkerDeath:
    return WorkerDeath(at_ms, worker, frozenset(traits))


def living(total: int, **counts: int) -> Living:
    return Living(total, {host(name): count for name, count in counts.items()})


def test_the_host_is_named_if_all_its_workers_died_and_no_others() -> None:
    dead = [died(f"w{n}", host("db3"), BUILD) for n in range(5)]
    cause = find_cause(dead, Living(20, {BUILD: 20, host("db4"): 20}))
    assert cause is not None
    assert (cause.trait, cause.dead_with, cause.living_with) == (host("db3"), 5, 0)


def test_what_everybody_has_is_no_cause() -> None:
    dead = [died(f"w{n}", host("only"), BUILD) for n in range(10)]
    assert find_cause(dead, Living(10, {host("only"): 10, BUILD: 10})) is None


def test_the_narrower_of_two_traits_is_named() -> None:
    """The whole zone ran the old build, and elsewhere too: only in the zone did workers die."""
    dead = [died(f"w{n}", zone("b"), BUILD) for n in range(6)]
    cause = find_cause(dead, Living(40, {BUILD: 15, zone("a"): 40}))
    assert cause is not None
    assert cause.trait == zone("b")


def test_a_few_others_that_died_in_the_same_minute_hide_no_cause() -> None:
    dead = [died(f"w{n}", host("db3")) for n in range(9)] + [died("x", host("db4")), died("y", host("db5"))]
    cause = find_cause(dead, living(100, db4=50, db5=50))
    assert cause is not None
    assert (cause.trait, cause.dead_with) == (host("db3"), 9)


def test_three_unrelated_deaths_are_no_incident_and_a_quarter_of_a_large_fleet_is() -> None:
    few = [died(f"w{n}", host(f"h{n}")) for n in range(3)]
    assert find_incident(few, living(200), DEFAULT_POLICY) is None
    many = [died(f"w{n}", host(f"h{n}")) for n in range(60)]
    found = find_incident(many, living(60), DEFAULT_POLICY)
    assert found is not None
    assert (found.cause.trait, found.cause.dead_with, found.living) == (None, 60, 60)


def test_deaths_are_grouped_by_the_minute_that_begins_with_the_first() -> None:
    times = [0, 30_000, 60_000, 60_001, 61_000, 90_000, 500_000]
    groups = group_deaths([died(f"w{at_ms}", at_ms=at_ms) for at_ms in reversed(times)])
    assert [[death.wall_ms for death in group] for group in groups] == [
        [0, 30_000, 60_000],
        [60_001, 61_000, 90_000],
    ]


def test_a_worker_that_dies_twice_in_a_minute_counts_once() -> None:
    deaths = [died("a"), died("a", at_ms=10), died("b", at_ms=20)]
    assert group_deaths(deaths) == []


@pytest.mark.parametrize(
    ("numbers", "chance"),
    [
        ((3, 3, 7, 0), 1 / 120),
        ((3, 3, 3, 0), 1 / 20),
        ((2, 0, 5, 3), 1.0),
        ((5, 5, 0, 0), 1.0),
        ((1, 1, 3, 1), 0.5),
    ],
)
def test_the_chance_is_that_of_drawing_without_putting_back(
    numbers: tuple[int, int, int, int], chance: float
) -> None:
    assert chance_of(*numbers) == pytest.approx(chance)


WORLDS = st.tuples(st.integers(3, 30), st.integers(0, 60), st.integers(1, 6), st.integers(0, 10**6))


@given(WORLDS)
@settings(max_examples=100, deadline=None)
def test_a_named_cause_is_rarer_among_the_living_and_does_not_depend_on_names(
    world: tuple[int, int, int, int],
) -> None:
    dead_count, living_count, hosts, seed = world
    random = Random(seed)
    dead = [
        died(f"w{n}", host(str(random.randrange(hosts))), zone(str(random.randrange(2))))
        for n in range(dead_count)
    ]
    counts = Counter(
        trait for _ in range(living_count) for trait in (host(str(random.randrange(hosts))), zone("0"))
    )
    cause = find_cause(dead, Living(living_count, counts))
    renamed = [death._replace(worker=f"x-{death.worker}") for death in reversed(dead)]
    assert find_cause(renamed, Living(living_count, counts)) == cause
    if cause is not None:
        assert cause.dead_with / dead_count >= 0.8
        assert cause.dead_with / dead_count > cause.living_with / max(1, living_count)
        assert cause.chance <= CHANCE_MAX


def test_deaths_at_random_are_seldom_given_a_cause() -> None:
    """Of many fleets in which chance alone chose who dies, a cause is named in at most as many as the bound says."""
    random, named, fleets = Random(7), 0, 400
    for _ in range(fleets):
        hosts = random.choice((2, 3, 10))
        workers = [
            (host(str(random.randrange(hosts))), zone(str(random.randrange(3))), Trait(TraitKind.BUILD, "", str(random.randrange(2))))
            for _ in range(random.choice((12, 40, 120)))
        ]  # fmt: skip
        random.shuffle(workers)
        dead_count = random.randrange(3, 8)
        dead = [died(str(n), *traits) for n, traits in enumerate(workers[:dead_count])]
        rest = workers[dead_count:]
        named += (
            find_cause(dead, Living(len(rest), Counter(trait for traits in rest for trait in traits)))
            is not None
        )
    assert named <= CHANCE_MAX * fleets
