"""Some simulated worlds of the many that `make sim` visits, and that they can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.command import run_seed
from tests.simulation.flaws import FLAWS, flawed
from tests.simulation.sometimes import SITUATIONS
from tests.simulation.story import story
from tests.simulation.world import Outcome

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(1, 33)
FLAWED_SEEDS_MAX = 20


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rule_is_broken(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, story(outcome)


def test_a_seed_is_the_same_world_in_every_process() -> None:
    def traces(hash_seed: str) -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.simulation",
                "--first",
                "4",
                "--seeds",
                "2",
                "--jobs",
                "1",
                "--hashes",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = traces("1")
    assert len(first.splitlines()) == 2
    assert traces("2") == first


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_found(name: str) -> None:
    found: Outcome | None = None
    with flawed(name):
        for seed in range(1, FLAWED_SEEDS_MAX + 1):
            outcome = run_seed(seed)
            if outcome.violation:
                found = outcome
                break
    assert found is not None
    told = story(found)
    assert found.violation in told
    assert f"--first {found.seed}" in told


def test_many_rare_situations_are_looked_for() -> None:
    assert len(SITUATIONS) >= 30
    assert max(Counter(SITUATIONS).values()) == 1
