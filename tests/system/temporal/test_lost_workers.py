"""Workers that are killed, stopped or busy in the middle of an activity: another worker gets it within seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.temporal.conftest import StartWorker
from tests.system.temporal.stage import Stage


@pytest.mark.parametrize("maximum_attempts", [0, 1, 3])
def test_the_activity_of_a_killed_worker_runs_on_another_one(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker, tmp_path: Path, maximum_attempts: int
) -> None:
    first = start_worker()
    activity = {"name": "a", "stuck": [1], "until": str(tmp_path / "never")}
    plan = {"task_queue": task_queue, "activities": [activity], "maximum_attempts": maximum_attempts}
    workflow_id = stage.temporal.start(plan, flows=flows)
    first.wait_event("started", activity="a", attempt=1)
    second = start_worker()

    first.kill()

    second.wait_event("started", activity="a", attempt=2)
    assert stage.temporal.result(workflow_id) == ["a by attempt 2"]
