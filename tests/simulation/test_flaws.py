"""The simulation finds each planted flaw, and its report names the broken rule and the command that shows it again."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.simulation.command import run_seed
from tests.simulation.failure_report import command, failure_report, shrink
from tests.simulation.flaws import FLAWS, FOUND_BY, flawed
from tests.simulation.plan import overrides_from
from tests.simulation.rules import RULES
from tests.simulation.world import Outcome

OTHER_SEEDS = range(1, 21)


def _found(name: str) -> Outcome:
    """Return a failure of the seeds that are known to find the flaw; if the code has changed, of other seeds."""
    for seed in chain(FOUND_BY[name], OTHER_SEEDS):
        outcome = run_seed(seed)
        if outcome.violation:
            return outcome
    pytest.fail("no seed broke a rule")


@pytest.mark.parametrize("name", FLAWS)
def test_the_simulation_finds_each_flaw(name: str) -> None:
    with flawed(name):
        found = _found(name)
    report = failure_report(found)
    assert RULES[found.rule] in report
    assert f"BROKEN: {found.violation.removeprefix(f'{found.rule}: ')}" in report
    assert command(found) in report


def test_shrinking_finds_a_smaller_world_that_breaks_the_same_rule() -> None:
    with flawed("answers before the commit"):
        found = _found("answers before the commit")
        smallest = shrink(found)
        again = run_seed(smallest.seed, overrides_from(smallest.seed, smallest.plan))
    assert smallest.rule == found.rule
    assert len(smallest.acted) <= 2
    assert smallest.plan.workers <= 2
    assert again.violation == smallest.violation
