"""Temporal's own command, from its wheel, works through the bridge as it does at the server."""

from __future__ import annotations

import json
import subprocess
from typing import Any
from uuid import uuid4

import pytest

from tests.system.cli.server_processes import environment
from tests.system.temporal.stage import LIMIT_S, NAMESPACE, Stage, plan, temporal_command


def temporal(address: str, *command: str) -> str:
    done = subprocess.run(
        [temporal_command(), *command, "--address", address, "-o", "json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workflow_id(stage: Stage, flows: str) -> str:
    """A workflow that was run with the command, through the bridge."""
    workflow_id = f"command-{uuid4().hex[:12]}"
    started = ("--workflow-id", workflow_id, "--type", "Run", "--task-queue", flows)
    answer = temporal(stage.address, "workflow", "execute", *started, "--input", json.dumps(plan(flows)))
    assert json.loads(answer)["status"] == "COMPLETED"
    return workflow_id


@pytest.mark.parametrize(
    "command",
    [
        "operator cluster health",
        "operator cluster system",
        f"operator namespace describe {NAMESPACE}",
        "operator search-attribute list",
        "workflow show --workflow-id {workflow_id}",
        "workflow describe --workflow-id {workflow_id}",
        "workflow result --workflow-id {workflow_id}",
        "task-queue describe --task-queue nobody",
    ],
)
def test_the_command_gets_the_same_answer(stage: Stage, workflow_id: str, command: str) -> None:
    words = command.format(workflow_id=workflow_id).split()
    assert in_order(temporal(stage.address, *words)) == in_order(temporal(stage.temporal.address, *words))


def in_order(answer: str) -> Any:
    """The command prints the types of a task queue in any order."""
    value = json.loads(answer)
    if isinstance(value, dict):
        for items in value.values():
            if isinstance(items, list):
                items.sort(key=json.dumps)
    return value
