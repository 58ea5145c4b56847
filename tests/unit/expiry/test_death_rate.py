"""The count of recent deaths, on this node and on other nodes."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.storm import STORM_WINDOW_MS
from liveness.expiry import death_rate as death_rate_module
from liveness.expiry.death_rate import NO_DEATHS, REPORT_TTL_MS, DeathCount, DeathRate


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def death_rate(clock: ManualClock) -> DeathRate:
    return DeathRate(clock)


def test_deaths_count_per_namespace_for_one_window(death_rate: DeathRate, clock: ManualClock) -> None:
    for _ in range(3):
        death_rate.add("orders", 1)
    clock.move(STORM_WINDOW_MS // 2)
    death_rate.add("orders", 4)
    assert (death_rate.recent("orders"), death_rate.recent("billing")) == (7, 0)
    clock.move(STORM_WINDOW_MS // 2 + 1)
    assert death_rate.recent("orders") == 4


def test_a_million_deaths_take_bounded_memory(death_rate: DeathRate, clock: ManualClock) -> None:
    for _ in range(2_000):
        death_rate.add("orders", 500)
        clock.move(30)
    assert death_rate.recent("orders") == 1_000_000
    assert len(death_rate._local["orders"]) <= STORM_WINDOW_MS // death_rate_module.BUCKET_MS + 1


def test_reports_of_other_nodes_are_summed_until_they_expire(
    death_rate: DeathRate, clock: ManualClock
) -> None:
    death_rate.record_report("a", "orders", DeathCount(12, 20))
    death_rate.record_report("a", "orders", DeathCount(13, 20))
    death_rate.record_report("b", "orders", DeathCount(1, 20))
    death_rate.record_report("b", "billing", DeathCount(5, 5))
    assert death_rate.on_other_nodes("orders") == DeathCount(14, 40)
    clock.move(REPORT_TTL_MS)
    death_rate.record_report("b", "orders", DeathCount(2, 20))
    clock.move(1)
    assert death_rate.on_other_nodes("orders") == DeathCount(2, 20)
    assert death_rate.on_other_nodes("unknown") == NO_DEATHS


def test_pruning_removes_old_deaths_and_reports(death_rate: DeathRate, clock: ManualClock) -> None:
    death_rate.add("orders", 1)
    death_rate.record_report("a", "orders", DeathCount(1, 1))
    clock.move(STORM_WINDOW_MS + 1)
    assert death_rate.prune()
    assert not death_rate._local
    assert not death_rate._reports
    assert not death_rate.prune(), "pruning is rate-limited"


def test_reports_from_many_nodes_and_namespaces_take_bounded_memory(
    death_rate: DeathRate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(death_rate_module, "NODES_MAX", 3)
    monkeypatch.setattr(death_rate_module, "NAMESPACES_MAX", 3)
    for node in range(10):
        for namespace in range(10):
            death_rate.record_report(f"node-{node}", f"namespace-{namespace}", DeathCount(1, 1))
    assert len(death_rate._reports) == 3
    assert {len(reports) for reports in death_rate._reports.values()} == {3}
    death_rate.record_report("node-0", "namespace-0", DeathCount(9, 9))
    assert death_rate.on_other_nodes("namespace-0").dead == 11
