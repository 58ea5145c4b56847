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
