"""The attempts that the events of an activity tell of."""

from __future__ import annotations

import itertools

from liveness.domain.activity_history import AttemptOutcome, TimedEvent, attempts_of
from liveness.domain.events import Retry, TimeLimits
from tests.unit.domain.activity_scenario import ActivityScenario, scheduled, task


def told(scenario: ActivityScenario) -> list[tuple[int, str, AttemptOutcome, str]]:
    events = zip(scenario.wall_times, scenario.log, strict=True)
    attempts = attempts_of(TimedEvent(wall_ms, event) for wall_ms, event in events)
    assert all(later.start_wall_ms >= earlier.end_wall_ms for earlier, later in itertools.pairwise(attempts))
    return [(known.attempt, known.worker, known.outcome, known.message) for known in attempts]


def test_every_way_in_which_an_attempt_ends_is_told() -> None:
    scenario = scheduled(Retry(initial_ms=1), limits=TimeLimits(start_to_close_ms=50))
    scenario.fail(scenario.start("a"), "broken")
    scenario.wait(10).make_available_if_due()
    scenario.start("b")
    scenario.wait(50).time_out_if_over()
    scenario.wait(10).make_available_if_due()
    scenario.lose(scenario.start("c"))
    scenario.lose(scenario.start("d"), died=False)
    scenario.give_back(scenario.start("e"), "stopping")
    scenario.wait(5).complete(scenario.start("f"))
    assert told(scenario) == [
        (1, "a", AttemptOutcome.FAILED, "broken"),
        (2, "b", AttemptOutcome.TIMED_OUT, scenario.log[5].message),  # type: ignore[union-attr]
        (3, "c", AttemptOutcome.WORKER_DIED, ""),
        (4, "d", AttemptOutcome.LOST, ""),
        (5, "e", AttemptOutcome.GIVEN_BACK, "stopping"),
        (6, "f", AttemptOutcome.COMPLETED, ""),
    ]


def test_an_attempt_that_runs_and_one_that_is_cancelled() -> None:
    scenario = scheduled()
    scenario.start("a")
    assert told(scenario) == [(1, "a", AttemptOutcome.RUNNING, "")]
    scenario.cancel("not needed")
    assert told(scenario) == [(1, "a", AttemptOutcome.CANCELLED, "not needed")]


def test_an_activity_that_is_cancelled_while_it_waits_has_no_attempt() -> None:
    scenario = scheduled()
    scenario.cancel()
    assert told(scenario) == []


def test_an_attempt_that_was_bound_by_heartbeat_alone_has_no_start() -> None:
    scenario = ActivityScenario()
    scenario.reschedule(task("a", attempt=3))
    [attempt] = attempts_of([TimedEvent(7, event) for event in scenario.log])
    assert (attempt.attempt, attempt.worker, attempt.start_wall_ms, attempt.end_wall_ms) == (3, "a", 0, 7)
    assert attempt.outcome is AttemptOutcome.WORKER_DIED


def test_the_last_allowed_death_is_one_attempt() -> None:
    scenario = scheduled(Retry(max_attempts=1))
    scenario.lose(scenario.start("a"))
    assert told(scenario) == [(1, "a", AttemptOutcome.WORKER_DIED, "")]


def test_a_history_that_begins_in_the_middle_still_tells_how_the_attempt_ended() -> None:
    scenario = scheduled()
    scenario.complete(scenario.start("a"))
    [attempt] = attempts_of([TimedEvent(7, scenario.log[-1])])
    assert (attempt.worker, attempt.start_wall_ms, attempt.outcome) == ("a", 0, AttemptOutcome.COMPLETED)
