"""How many died lately, here and elsewhere."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.storm import WINDOW_MS
from liveness.shard import strikes as strikes_module
from liveness.shard.strikes import NOBODY, TOLD_MS, Counted, Strikes


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def strikes(clock: ManualClock) -> Strikes:
    return Strikes(clock)


def test_deaths_count_for_a_minute_and_for_their_namespace(strikes: Strikes, clock: ManualClock) -> None:
    for _ in range(3):
        strikes.add("orders", 1)
    clock.move(WINDOW_MS // 2)
    strikes.add("orders", 4)
    assert (strikes.recent("orders"), strikes.recent("billing")) == (7, 0)
    clock.move(WINDOW_MS // 2 + 1)
    assert strikes.recent("orders") == 4


def test_a_million_deaths_take_no_more_room_than_a_few(strikes: Strikes, clock: ManualClock) -> None:
    for _ in range(2_000):
        strikes.add("orders", 500)
        clock.move(30)
    assert strikes.recent("orders") == 1_000_000
    assert len(strikes._here["orders"]) <= WINDOW_MS // strikes_module.SLICE_MS + 1


def test_what_other_nodes_say_is_added_up_and_counts_for_some_seconds(
    strikes: Strikes, clock: ManualClock
) -> None:
    strikes.hear("a", "orders", Counted(12, 20))
    strikes.hear("a", "orders", Counted(13, 20))
    strikes.hear("b", "orders", Counted(1, 20))
    strikes.hear("b", "billing", Counted(5, 5))
    assert strikes.elsewhere("orders") == Counted(14, 40)
    clock.move(TOLD_MS)
    strikes.hear("b", "orders", Counted(2, 20))
    clock.move(1)
    assert strikes.elsewhere("orders") == Counted(2, 20)
    assert strikes.elsewhere("nobody's") == NOBODY


def test_who_came_and_went_is_forgotten(strikes: Strikes, clock: ManualClock) -> None:
    strikes.add("orders", 1)
    strikes.hear("a", "orders", Counted(1, 1))
    clock.move(WINDOW_MS + 1)
    assert strikes.forget_old()
    assert not strikes._here
    assert not strikes._told
    assert not strikes.forget_old(), "not all the time"


def test_nobody_can_fill_the_memory_with_names(strikes: Strikes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes_module, "NODES_MAX", 3)
    monkeypatch.setattr(strikes_module, "NAMESPACES_MAX", 3)
    for node in range(10):
        for namespace in range(10):
            strikes.hear(f"node-{node}", f"namespace-{namespace}", Counted(1, 1))
    assert len(strikes._told) == 3
    assert {len(told) for told in strikes._told.values()} == {3}
    strikes.hear("node-0", "namespace-0", Counted(9, 9))
    assert strikes.elsewhere("namespace-0").struck == 11
