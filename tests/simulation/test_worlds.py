"""A few of the worlds that `make sim` runs: no rule is broken in them, and a seed always gives the same world."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.command import run_seed
from tests.simulation.failure_report import failure_report
from tests.simulation.plan import plan_of
from tests.simulation.sometimes import SITUATIONS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (*range(1, 17), 54, 63, 7_770_005)
"""In the two before the last, nodes lack processor time and nothing else happens. In the last one, a session is replaced while the answer to its late heartbeat waits for the same commit."""
TWICE = 4


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rule_is_broken(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, failure_report(outcome)


@pytest.mark.parametrize(
    "how", [("1", "1"), ("2", "2")], ids=["one process", "two processes, another hash seed"]
)
def test_a_seed_gives_the_same_world_in_every_process(how: tuple[str, str]) -> None:
    jobs, hash_seed = how
    printed = subprocess.run(
        [
            *(sys.executable, "-m", "tests.simulation", "--hashes"),
            *("--first", str(TWICE), "--seeds", "2", "--jobs", jobs),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == "".join(f"{seed} {_trace(seed)}\n" for seed in (TWICE, TWICE + 1))


@cache
def _trace(seed: int) -> str:
    return run_seed(seed).trace


def test_seeds_differ_in_kind() -> None:
    plans = [plan_of(seed) for seed in range(1, 301)]
    assert {plan.nodes_max for plan in plans} == {1, 2, 3, 4}
    assert {plan.storm_settings.min_workers < 20 for plan in plans} == {True, False}
    assert 5 <= sum(200 <= plan.workers <= 400 for plan in plans) <= 20


def test_the_situations_are_many_and_distinct() -> None:
    assert len(SITUATIONS) >= 30
    assert max(Counter(SITUATIONS).values()) == 1
