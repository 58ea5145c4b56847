"""A simulation that finds nothing may be blind. Each flaw is found, and told so that a stranger understands it."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.simulation.command import run_seed
from tests.simulation.failure_report import command, shrink, story
from tests.simulation.flaws import FLAWS, FOUND_BY, flawed
from tests.simulation.plan import overrides_from
from tests.simulation.rules import RULES
from tests.simulation.world import Outcome

OTHER_SEEDS = range(1, 21)


def _found(name: str) -> Outcome:
    """By the seeds that are known to, or, should the code behave otherwise by now, by others."""
    for seed in chain(FOUND_BY[name], OTHER_SEEDS):
        outcome = run_seed(seed)
        if outcome.violation:
            return outcome
    pytest.fail("nobody noticed")


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_found(name: str) -> None:
    with flawed(name):
        found = _found(name)
    told = story(found)
    assert RULES[found.rule] in told
    assert f"BROKEN: {found.violation.removeprefix(f'{found.rule}: ')}" in told
    assert command(found) in told


def test_a_story_is_told_in_a_world_without_what_it_does_not_take() -> None:
    with flawed("answers before the commit"):
        found = _found("answers before the commit")
        smallest = shrink(found)
        again = run_seed(smallest.seed, overrides_from(smallest.seed, smallest.plan))
    assert smallest.rule == found.rule
    assert len(smallest.acted) <= 2
    assert smallest.plan.workers <= 2
    assert again.violation == smallest.violation
