"""The life of one component, by example: each legal change of status, and what is done about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liveness.domain.component import LEGAL_CHANGES, Component, ComponentStatus, ProcessExit
from liveness.supervisor.actions import Kill, Remember, Report, SendControl, Signal, Spawn
from liveness.supervisor.settings import CheckSettings, Health
from tests.unit.supervisor.component_life import (
    DONE,
    EXIT,
    FAILED,
    GROUP,
    TERM,
    TERM_ALL,
    UP,
    WITH_FAILED,
    Life,
    short,
)

EDGES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("None", "STARTING"): ("start", "spawned"),
    ("None", "STOPPED"): ("stop",),
    ("STARTING", "HEALTHY"): UP,
    ("STARTING", "PAUSED"): ("start", "spawned", "pause", "ready"),
    ("STARTING", "STOPPING"): ("start", "spawned", "stop"),
    ("STARTING", "STOPPED"): ("start", "spawned", DONE),
    ("STARTING", "CRASHED"): ("start", "spawned", 30),
    ("HEALTHY", "PAUSED"): (*UP, "pause"),
    ("HEALTHY", "STOPPING"): (*UP, "stop"),
    ("HEALTHY", "STOPPED"): (*UP, DONE),
    ("HEALTHY", "CRASHED"): (*UP, EXIT),
    ("PAUSED", "HEALTHY"): (*UP, "pause", "resume"),
    ("PAUSED", "STOPPING"): (*UP, "pause", "stop"),
    ("PAUSED", "STOPPED"): (*UP, "pause", DONE),
    ("PAUSED", "CRASHED"): (*UP, "pause", EXIT),
    ("STOPPING", "STOPPED"): (*UP, "stop", EXIT),
    ("STOPPING", "CRASHED"): (ComponentStatus.STOPPING, "start"),
    ("STOPPED", "STARTING"): (*UP, DONE, "start_ordered", "spawned"),
    ("CRASHED", "STARTING"): (*UP, EXIT, 1, "spawned"),
    ("CRASHED", "FAILED"): FAILED,
    ("CRASHED", "STOPPED"): (*UP, EXIT, "stop"),
    ("FAILED", "STARTING"): (*FAILED, "restart", "spawned"),
    ("FAILED", "STOPPED"): (*FAILED, "stop"),
}


@pytest.mark.parametrize("edge", EDGES, ids="-".join)
def test_each_change_of_status_happens(edge: tuple[str, str]) -> None:
    steps = EDGES[edge]
    before = None
    if isinstance(steps[0], ComponentStatus):
        before, steps = Component(1, steps[0], 0, "s"), steps[1:]
    life = Life(WITH_FAILED, before)
    life.go(*steps)
    old, new = life.edges[-1]
    assert (old.name if old else "None", new.name) == edge


def test_every_legal_change_is_in_the_table() -> None:
    legal = {(old.name if old else "None", new.name) for old, after in LEGAL_CHANGES.items() for new in after}
    assert legal == set(EDGES)


# -- how a process becomes ready, and hangs


@pytest.mark.parametrize(
    ("health", "steps", "status"),
    [
        ("process", [0.999], "STARTING"),
        ("process", [1], "HEALTHY"),
        ("process", [("heard", "starting"), 1], "HEALTHY"),
        ("auto", [1], "HEALTHY"),
        ("auto", [0.5, ("heard", "starting"), 29], "STARTING"),
        ("auto", [0.5, ("heard", "starting"), 29.5], "CRASHED"),
        ("pipe", [29.999], "STARTING"),
        ("pipe", [30], "CRASHED"),
        ("pipe", [("heard", "starting")], "STARTING"),
        ("pipe", [("heard", "healthy")], "HEALTHY"),
        ("pipe", ["pause", ("heard", "paused")], "PAUSED"),
        ("notify", [("heard", "healthy")], "STARTING"),
        ("notify", ["ready", 10_000], "HEALTHY"),
        ("process", ["ready", "health_closed", 10_000], "HEALTHY"),
        ("auto", ["ready", "health_closed", 10_000], "HEALTHY"),
        ("auto", [("heard", "healthy"), 29.999], "HEALTHY"),
        ("auto", [("heard", "healthy"), 30], "CRASHED"),
        ("pipe", ["ready", 30], "CRASHED"),
        ("pipe", ["ready", 20, ("heard", "healthy"), 29.9], "HEALTHY"),
        ("pipe", ["ready", "health_closed", 0.9], "HEALTHY"),
        ("pipe", ["ready", "health_closed", 1], "CRASHED"),
        ("auto", ["ready", ("liveness_failed", "no answer")], "CRASHED"),
        ("auto", [("liveness_failed", "no answer")], "STARTING"),
    ],
)
def test_health(health: str, steps: list[Any], status: str) -> None:
    life = Life(replace(GROUP, health=Health(health)))
    life.go("start", "spawned", *steps)
    assert life.machine.status is ComponentStatus[status]


def test_notifications_that_come_once_start_no_watchdog() -> None:
    life = Life(replace(GROUP, health=Health.AUTO))
    life.go(*UP)
    life.machine.heard(life.now, regular=False, by_pipe=False)
    assert short(life.go(10_000)) == []
    life.machine.heard(life.now, by_pipe=False)
    assert short(life.go(30)) == ["CRASHED", TERM_ALL]


def test_with_a_readiness_check_only_the_check_makes_ready() -> None:
    life = Life(replace(GROUP, readiness=CheckSettings(tcp="a:1")))
    assert life.go("start", "spawned", "ready", ("heard", "healthy"))[1:] == []
    assert short(life.machine.ready(life.now, by_check=True)) == ["HEALTHY"]


def test_a_pipe_that_closes_just_before_the_exit_is_seen_is_no_hang() -> None:
    assert short(Life().go(*UP, "health_closed", 0.01, DONE)) == ["STOPPED"]


def test_a_hanging_process_is_ended_before_the_next_starts() -> None:
    life = Life()
    assert short(life.go(*UP, 30)) == ["CRASHED", TERM_ALL]
    assert life.go(9.999) == []
    assert life.go(0.001) == [Kill()]
    assert life.go(1_000) == []
    assert life.go(("exited", ProcessExit(None, "SIGKILL"))) == []
    assert life.go(0.999) == []
    assert life.go(0.001) == [Spawn()]
    (report,) = life.go("spawned")
    assert isinstance(report, Report)
    assert report.exit == ProcessExit(None, "SIGKILL")
    assert report.kept.restart_count == 1


def test_a_hanging_process_that_ends_with_0_is_not_done() -> None:
    assert Life().go(*UP, 30, DONE, 1) == [Spawn()]


def test_a_command_that_cannot_be_started_counts_like_a_crash() -> None:
    life = Life()
    life.go("start")
    for delay in (1, 2, 4, 8, 16):
        assert short(life.go(("spawn_failed", "no such file"))) == ["STARTING", "CRASHED"]
        assert life.go(delay)[-1:] == [Spawn()]
    assert short(life.go(("spawn_failed", "no such file"))) == ["STARTING", "CRASHED", "FAILED"]
    assert life.machine.is_at_rest


# -- stopping


@pytest.mark.parametrize(
    ("ended", "unclean"),
    [
        (ProcessExit(0), False),
        (ProcessExit(1), True),
        (ProcessExit(143), False),
        (ProcessExit(None, "SIGTERM"), False),
        (ProcessExit(None, "SIGSEGV"), True),
    ],
)
def test_an_exit_while_stopping_is_stopped_whatever_the_code(ended: ProcessExit, unclean: bool) -> None:
    life = Life(WITH_FAILED)
    assert short(life.go(*UP, ("stop", "ann", "too hot"))) == ["STOPPING", TERM]
    (report,) = life.go(("exited", ended))
    assert isinstance(report, Report)
    assert (report.status, report.by, report.reason, report.exit) == (
        ComponentStatus.STOPPED,
        "ann",
        "too hot",
        ended,
    )
    assert life.machine.unclean is unclean
    assert life.machine.is_at_rest


def test_a_process_that_ignores_the_stop_signal_is_killed() -> None:
    life = Life()
    assert life.go(*UP, "stop", 10) == [Kill()]
    assert short(life.go(("exited", ProcessExit(None, "SIGKILL")))) == ["STOPPED"]
    assert life.machine.unclean


def test_a_stop_before_the_process_is_there_waits_for_it() -> None:
    assert short(Life().go("start", "stop", "spawned")) == ["STARTING", "STOPPING", TERM]
    assert short(Life().go("start", "stop", ("spawn_failed", "why"))) == ["STOPPED"]


def test_a_supervisor_that_ends_stops_the_process_and_wants_it_still() -> None:
    life = Life()
    assert short(life.go(*UP, "shut_down")) == ["STOPPING", TERM]
    assert life.go("restart", "stop", "pause", "reset") == []
    assert short(life.go(EXIT)) == ["STOPPED"]
    assert (life.machine.is_at_rest, life.machine.wanted) == (True, True)


# -- orders


def test_an_ordered_restart_stops_and_starts_and_does_not_count() -> None:
    life = Life()
    assert short(life.go(*UP, ("restart", "ann", "new code"))) == ["STOPPING", TERM]
    assert short(life.go(EXIT)) == ["STOPPED", Spawn()]
    (report,) = life.go("spawned")
    assert isinstance(report, Report)
    assert (report.by, report.reason, report.kept.restart_count) == ("ann", "new code", 0)


@pytest.mark.parametrize("before", [(*UP, "stop", DONE), FAILED, (*UP, DONE), (*UP, EXIT)])
def test_an_ordered_restart_starts_what_has_no_process_at_once(before: tuple[Any, ...]) -> None:
    life = Life(WITH_FAILED)
    assert life.go(*before, "restart") == [Spawn()]
    assert life.machine.wanted


def test_an_ordered_restart_of_a_hanging_process_waits_for_its_end_and_not_longer() -> None:
    life = Life()
    assert life.go(*UP, 30, "restart") == []
    assert life.go(EXIT) == [Spawn()]
    assert life.machine.history.count == 0


def test_a_start_while_it_stops_follows_the_stop() -> None:
    life = Life()
    (remembered,) = life.go(*UP, "stop", ("start_ordered", "ann"))
    assert isinstance(remembered, Remember)
    assert (remembered.by, remembered.kept.wanted) == ("ann", True)
    assert short(life.go(DONE)) == ["STOPPED", Spawn()]


@pytest.mark.parametrize(
    "steps",
    [
        (*UP, "start_ordered"),
        (*UP, "resume"),
        (*UP, "reset"),
        (*UP, "pause", "pause"),
        (*UP, "stop", "stop"),
        (*UP, "restart", "restart"),
        (*UP, EXIT, "start_ordered"),
        (*UP, "stop", DONE, "stop"),
        (*UP, "shut_down", "shut_down"),
        ("start", "start"),
    ],
)
def test_orders_that_change_nothing_lead_to_nothing(steps: tuple[Any, ...]) -> None:
    assert Life().go(*steps) == []


def test_a_pause_outlives_processes() -> None:
    life = Life()
    assert short(life.go(*UP, "pause")) == [SendControl(True), "PAUSED"]
    life.go(EXIT, 1)
    assert short(life.go("spawned")) == ["STARTING", SendControl(True)]
    assert short(life.go("ready")) == ["PAUSED"]
    assert short(life.go("resume")) == [SendControl(False), "HEALTHY"]


def test_a_pause_of_a_crashed_component_is_remembered() -> None:
    life = Life()
    (remembered,) = life.go(*UP, EXIT, ("pause", "ann", "look"))
    assert isinstance(remembered, Remember)
    assert (remembered.by, remembered.reason, remembered.kept.paused) == ("ann", "look", True)
    assert short(life.go(1, "spawned")) == ["STARTING", SendControl(True)]


def test_signals_pause_a_process_that_is_ready() -> None:
    life = Life(replace(GROUP, pause_signal="SIGSTOP", resume_signal="SIGCONT"))
    stop, go_on = Signal("SIGSTOP", whole_group=False), Signal("SIGCONT", whole_group=False)
    assert short(life.go("start", "spawned", "pause"))[:1] == [SendControl(True)]
    assert short(life.go("ready")) == ["PAUSED", stop]
    assert life.go(10_000) == []  # a stopped process cannot tell anything
    assert life.go(("liveness_failed", "no answer")) == []
    assert short(life.go("resume")) == [SendControl(False), "HEALTHY", go_on]
    assert life.go(29.9) == []
    assert short(life.go(("heard", "healthy"), "pause", "stop")) == [
        "STOPPING",
        TERM,
        Signal("SIGCONT", True),
    ]
