"""Workflows go on while workers are killed at random: each activity has its effect, and the highest attempt has the last word."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.system.temporal.conftest import StartWorker
from tests.system.temporal.stage import Stage, plan, stuck

ACTIVITIES, WORKERS, KILLS = 200, 5, 6
SECONDS = 0.3
"""How long an activity takes."""
TEST_LIMIT_S = 300
RESULT_LIMIT_S = 180
"""Each kill costs the start of a Python process, and each activity some calls: on a busy machine that adds up."""


@pytest.mark.timeout(TEST_LIMIT_S)
async def test_a_workflow_completes_while_workers_are_killed(
    stage: Stage,
    flows: str,
    task_queue: str,
    start_worker: StartWorker,
    tmp_path: Path,
    until: Path,
) -> None:
    """Every second activity waits in its first attempt until nobody is killed any more. So there is work for each new worker, however
    long it takes to start, and each is killed in the middle of something."""
    dice = random.Random(16)
    ledger = tmp_path / "ledger"
    running = [start_worker(slots=4) for _ in range(WORKERS)]
    stage.known_worker(running[0], task_queue)
    specs = [
        stuck(
            f"a{number}",
            until,
            seconds=dice.uniform(0.5, 1.5) * SECONDS,
            ledger=str(ledger),
            **({} if number % 2 else {"stuck": []}),
        )
        for number in range(ACTIVITIES)
    ]
    workflow_id = stage.temporal.start(plan(task_queue, *specs, maximum_attempts=1), flows=flows)
    for _ in range(KILLS):
        victim = running.pop(dice.randrange(len(running)))
        victim.wait_event("started")
        victim.kill()
        running.append(start_worker(slots=4))
    until.touch()

    results = stage.temporal.result(workflow_id, RESULT_LIMIT_S)

    assert [result.split()[0] for result in results] == [spec["name"] for spec in specs]
    effects: dict[str, list[int]] = {}
    for name, effect in map(str.split, ledger.read_text().splitlines()):
        effects.setdefault(name, []).append(int(effect))
    for result in results:
        name, attempt = result.split()[0], int(result.split()[-1])
        # An attempt may have had its effect and died before it could say so; the last one counts.
        assert max(effects[name]) == attempt, (result, effects[name])
        assert len(set(effects[name])) == len(effects[name])
