"""The number of namespaces with their own counters is bounded; clients cannot exceed it."""

from __future__ import annotations

from liveness.telemetry.counters import NAMESPACES_MAX, OTHER, CountersByNamespace


def test_namespaces_beyond_the_limit_share_one_counter() -> None:
    counters = CountersByNamespace()
    for number in range(NAMESPACES_MAX + 20):
        counters.track(f"n{number}").registrations += 1
    counted = {namespace: tally.registrations for namespace, tally in counters.items()}
    assert len(counted) == NAMESPACES_MAX + 1
    assert counted[OTHER] == 20
    assert counters.label("n0") == "n0"
    assert counters.label(f"n{NAMESPACES_MAX}") == OTHER


def test_reading_an_untracked_namespace_uses_the_shared_counter() -> None:
    counters = CountersByNamespace()
    for number in range(1_000):
        counters.get(f"n{number}").heartbeats += 1
    assert {namespace: tally.heartbeats for namespace, tally in counters.items()} == {OTHER: 1_000}


def test_a_namespace_with_the_shared_name_uses_the_shared_counter() -> None:
    counters = CountersByNamespace()
    counters.track(OTHER).registrations += 1
    assert [(namespace, tally.registrations) for namespace, tally in counters.items()] == [(OTHER, 1)]


def test_busy_namespaces_take_the_places_of_idle_ones() -> None:
    counters = CountersByNamespace()
    for number in range(NAMESPACES_MAX):
        counters.track(f"made-up-{number}")
        counters.count_heartbeats(f"made-up-{number}", 1)
    counters.rebalance(lambda namespace: True)
    for number in range(1, NAMESPACES_MAX):
        counters.count_heartbeats(f"made-up-{number}", 50)
    counters.count_heartbeats("orders", 1)
    counters.count_heartbeats("billing", 90)
    counters.count_heartbeats("without workers", 1_000)
    assert counters.rebalance(lambda namespace: namespace != "without workers") == ["made-up-0"]
    assert counters.label("billing") == "billing", "the busier of the two"
    assert counters.label("orders") == counters.label("without workers") == OTHER
    counters.count_heartbeats("billing", 90)
    assert counters.get("billing").heartbeats == 90
    assert len(dict(counters.items())) == NAMESPACES_MAX + 1


def test_namespaces_that_are_equally_busy_do_not_take_turns() -> None:
    counters = CountersByNamespace()
    for number in range(NAMESPACES_MAX):
        counters.track(f"n{number}")
    for _ in range(3):
        for number in range(NAMESPACES_MAX + 10):
            counters.count_heartbeats(f"n{number}", 10)
        assert counters.rebalance(lambda namespace: True) == []


def test_a_namespace_that_is_tracked_meanwhile_keeps_its_counters() -> None:
    counters = CountersByNamespace()
    counters.count_heartbeats("orders", 1)
    counters.track("orders").registrations += 1
    assert counters.rebalance(lambda namespace: True) == []
    assert counters.get("orders").registrations == 1
