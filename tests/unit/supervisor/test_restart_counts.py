"""The restarts that a component counts: what forgets them, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liveness.domain.component import Component, ComponentStatus, ProcessExit
from liveness.supervisor.actions import Moment, Remember, Report, Spawn
from liveness.supervisor.settings import Health
from tests.unit.supervisor.component_life import EXIT, GROUP, UP, WALL_MS, WITH_FAILED, Life, short


def test_five_minutes_of_health_forget_restarts_whether_paused_or_not() -> None:
    life = Life(replace(GROUP, health=Health.NOTIFY))
    life.go(*UP, EXIT, 1, "spawned", "ready", 100, "pause", 100, "resume")
    assert life.go(99.999) == []
    (remembered,) = life.go(0.001)
    assert isinstance(remembered, Remember)
    assert (remembered.reason, remembered.kept.restart_count) == ("healthy for 300 s", 0)


def test_a_crash_after_enough_health_counts_as_the_first_even_if_no_tick_came() -> None:
    life = Life(replace(GROUP, health=Health.NOTIFY))
    life.go(*UP, EXIT, 1, "spawned", "ready")
    life._advance(life.now.monotonic_ms + 300_000)
    (report,) = life.go(EXIT)
    assert isinstance(report, Report)
    assert report.kept.restart_count == 0


def test_a_reset_forgets_restarts_and_starts_what_failed() -> None:
    life = Life(WITH_FAILED)
    life.go(*UP, EXIT, 1, "spawned", ("exited", ProcessExit(3)))
    assert (life.machine.status, life.machine.history.count) == (ComponentStatus.FAILED, 1)
    assert life.go(100_000) == []
    assert life.go("reset") == [Spawn()]
    (report,) = life.go("spawned")
    assert isinstance(report, Report)
    assert report.kept.restart_count == 0


@pytest.mark.parametrize(
    ("status", "wanted", "followed"),
    [
        ("STARTING", True, ["CRASHED", Spawn()]),
        ("HEALTHY", True, ["CRASHED", Spawn()]),
        ("STOPPING", True, ["CRASHED", Spawn()]),
        ("STOPPING", False, ["STOPPED"]),
        ("STOPPED", True, [Spawn()]),
        ("STOPPED", False, []),
        ("CRASHED", True, []),
        ("CRASHED", False, ["STOPPED"]),
        ("FAILED", True, []),
    ],
)
def test_a_new_supervisor_continues(status: str, wanted: bool, followed: list[object]) -> None:
    restarts = (WALL_MS - 2_000, WALL_MS - 1_000)
    component = Component(
        9, ComponentStatus[status], 0, "s", paused=True, wanted=wanted, restart_count=7, restarts=restarts
    )
    life = Life(component=component)
    assert short(life.go("start")) == followed
    assert life.machine.kept == (True, wanted, 7, restarts)
    if status == "CRASHED" and wanted:
        assert life.go(54) == [Spawn()]
        assert life.machine.history.count == 8


def test_setting_the_wall_clock_moves_no_window() -> None:
    life = Life()
    life.go(*UP)
    for delay in (1, 2, 4, 8, 16):
        life.now = Moment(life.now.monotonic_ms, life.now.wall_ms + 3_600_000)
        life.go(EXIT, delay, "spawned")
    assert short(life.go(EXIT)) == ["CRASHED", "FAILED"]


def test_an_answer_that_nobody_waits_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="there was none"):
        Life().go(*UP, "spawned")
