"""Delays and limits of restarts, by example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.component import RESTARTS_MAX, Component, ComponentStatus, ProcessExit
from liveness.supervisor.restart_policy import (
    NO_RESTARTS,
    Done,
    GiveUp,
    Restart,
    RestartHistory,
    delay,
    next_step,
)
from liveness.supervisor.settings import ExitMeaning, GroupSettings, RestartSettings

GROUP = GroupSettings(
    name="g",
    command=("run",),
    exit_codes={
        0: ExitMeaning.DONE,
        3: ExitMeaning.FAILED,
        4: ExitMeaning.RESTART_NOW,
        "SIGHUP": ExitMeaning.DONE,
    },
)
EXACT = GroupSettings(name="g", command=("run",), restart=RestartSettings(jitter=0))
CRASH = ProcessExit(1)
MINUTE_MS = 60_000


def history(*times_ms: int) -> RestartHistory:
    return RestartHistory(len(times_ms), times_ms)


@pytest.mark.parametrize(
    ("restarts", "seconds"),
    [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (19, 60), (10**6, 60)],
)
def test_the_delay_doubles_up_to_a_minute(restarts: int, seconds: int) -> None:
    assert delay(restarts, EXACT.restart, 0.7) == seconds * 1_000


@pytest.mark.parametrize(
    ("restarts", "shortest", "longest"), [(0, 1_000, 1_100), (3, 7_200, 8_800), (6, 54_000, 60_000)]
)
def test_jitter_spreads_delays_and_keeps_their_bounds(restarts: int, shortest: int, longest: int) -> None:
    assert (delay(restarts, GROUP.restart, 0), delay(restarts, GROUP.restart, 1)) == (shortest, longest)


@given(st.integers(0, 30), st.floats(0, 1), st.floats(0, 1))
def test_no_delay_is_out_of_bounds(restarts: int, share: float, jitter: float) -> None:
    base_ms = min(2**restarts, 60) * 1_000
    delay_ms = delay(restarts, RestartSettings(jitter=share), jitter)
    assert 1_000 <= delay_ms <= 60_000
    assert abs(delay_ms - base_ms) <= base_ms * share + 1


@pytest.mark.parametrize(
    ("ended", "step"),
    [
        (ProcessExit(0), Done("exit code 0")),
        (ProcessExit(None, "SIGHUP"), Done("killed by SIGHUP")),
        (ProcessExit(3), GiveUp("exit code 3 means failed")),
        (ProcessExit(4), Restart(0)),
        (ProcessExit(1), Restart(1_000)),
        (ProcessExit(None, "SIGKILL"), Restart(1_000)),
        (ProcessExit(), Restart(1_000)),
        (None, Restart(1_000)),
    ],
)
def test_what_an_exit_means(ended: ProcessExit | None, step: object) -> None:
    assert next_step(NO_RESTARTS, GROUP, ended, 0, 0.0) == step


def test_the_sixth_restart_within_five_minutes_is_one_too_many() -> None:
    """The delay would be 32 s, so the sixth would come 5 minutes after the first if the crash comes at 268 s."""
    five = history(0, 10_000, 20_000, 30_000, 40_000)
    refused = GiveUp("restarted 5 times within 300 s, and the limit is 5")
    assert next_step(five, EXACT, CRASH, 268_000 - 1, 0) == refused
    assert next_step(five, EXACT, CRASH, 268_000, 0) == Restart(32_000)


def test_restarts_over_weeks_share_no_window() -> None:
    week_ms = 7 * 24 * 60 * MINUTE_MS
    assert next_step(history(*range(0, 19 * week_ms, week_ms)), EXACT, CRASH, 20 * week_ms, 0) == Restart(
        60_000
    )


def test_there_are_at_most_twenty_in_all() -> None:
    nineteen = RestartHistory(19, ())
    assert next_step(nineteen, EXACT, CRASH, 0, 0) == Restart(60_000)
    assert next_step(nineteen.restarted(0), EXACT, CRASH, 10**9, 0) == GiveUp(
        "restarted 20 times, and the limit is 20 in all"
    )


def test_restarts_without_delay_count_too() -> None:
    now = history(0, 1, 2, 3, 4)
    assert isinstance(next_step(now, GROUP, ProcessExit(4), 5, 0), GiveUp)


def test_a_limit_of_zero_allows_none() -> None:
    group = GroupSettings(name="g", command=("run",), restart=RestartSettings(window_limit=0))
    assert isinstance(next_step(NO_RESTARTS, group, CRASH, 0, 0), GiveUp)


def test_history_goes_through_a_component_unchanged() -> None:
    kept = NO_RESTARTS
    for time_ms in range(0, 10 * RESTARTS_MAX, 5):
        kept = kept.restarted(time_ms)
    assert (kept.count, len(kept.times_ms)) == (2 * RESTARTS_MAX, RESTARTS_MAX)
    component = Component(
        1, ComponentStatus.CRASHED, 0, "s", restart_count=kept.count, restarts=kept.times_ms
    )
    assert RestartHistory.of_component(component, 10**6) == kept


def test_times_from_a_clock_that_was_ahead_count_as_now() -> None:
    component = Component(1, ComponentStatus.CRASHED, 0, "s", restart_count=2, restarts=(50, 9_000))
    assert RestartHistory.of_component(component, 100) == RestartHistory(2, (50, 100))
