"""`liveness tasks` against a real server whose matching fails for some activities."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from liveness.v1.worker_pb2 import ActivityRef
from tests.system.cli.server_processes import WITH_MATCHING_IN_TROUBLE, child_process, first_address
from tests.system.cli.shell import Shell


class FailingMatchingShell(Shell):
    def __init__(self, address: str, namespace: str, recovered: Path) -> None:
        super().__init__(address, namespace)
        self._recovered = recovered

    def recover(self) -> None:
        (self._recovered / self.namespace).touch()

    def lose(self, *workflow_ids: str) -> None:
        """Let a worker that holds these activities expire."""
        bound = [
            ActivityRef(workflow_id=id, run_id="r", activity_id="a", task_queue="q") for id in workflow_ids
        ]
        self.heartbeat("w", bound_activities=bound)
        self.ok("workers", "expire", "w", "--reason", "test", "--yes")

    def tasks(self, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("tasks", "list", *options)
        return found

    def settled(self, state: str, count: int) -> list[str]:
        """Wait for `count` tasks in a state, and return their ids.

        Each poll is a call; the test's time-out bounds the loop.
        """
        while len(found := self.tasks("--state", state)) < count:
            pass
        return [task["task_id"] for task in found]


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovered")


@pytest.fixture(scope="module")
def failing_server(tmp_path_factory: pytest.TempPathFactory, recovered: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("troubled")
    command = [sys.executable, "-c", WITH_MATCHING_IN_TROUBLE, str(folder / "liveness.db"), str(recovered)]
    with child_process(command, folder) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield first_address(process.stdout)[0]
        process.stdin.close()  # the process reads until then
        process.wait()


_names = count(1)


@pytest.fixture
def failing_shell(failing_server: str, recovered: Path) -> FailingMatchingShell:
    return FailingMatchingShell(failing_server, f"shop-{next(_names)}", recovered)


def test_tasks_are_listed_by_state(failing_shell: FailingMatchingShell) -> None:
    failing_shell.lose("poison-1", "fine-1")
    (dead,) = failing_shell.settled("dead-lettered", 1)
    failing_shell.settled("done", 1)
    (listed,) = failing_shell.tasks()
    assert (listed["task_id"], listed["state"]) == (dead, "TASK_STATE_DEAD_LETTERED")
    assert len(failing_shell.tasks("--state", "dead-lettered", "--state", "done")) == 2
    assert failing_shell.tasks("--state", "discarded") == []


def test_a_task_shows_its_activity_and_its_error(failing_shell: FailingMatchingShell) -> None:
    failing_shell.lose("poison-1")
    failing_shell.settled("dead-lettered", 1)
    _, row = failing_shell.ok("tasks", "list").splitlines()
    for cell in (
        "DEAD_LETTERED",
        "ActivityRescheduleTask",
        failing_shell.namespace,
        "poison-1 / r / a",
        "w (epoch 1)",
    ):
        assert cell in row
    assert row.endswith(r"RuntimeError: [bold]no broker[/bold] \x1b[31m")


def test_a_list_covers_one_namespace_or_all(failing_shell: FailingMatchingShell) -> None:
    failing_shell.lose("poison-1")
    failing_shell.settled("dead-lettered", 1)
    assert failing_shell.tasks("-n", "other") == []
    everywhere = failing_shell.tasks("-n", "other", "--all-namespaces", "--limit", "0")
    assert failing_shell.namespace in {task["namespace"] for task in everywhere}


def test_a_retried_task_succeeds_after_the_fault_is_over(failing_shell: FailingMatchingShell) -> None:
    failing_shell.lose("poison-1", "poison-2")
    ids = failing_shell.settled("dead-lettered", 2)
    failing_shell.recover()
    assert [task["task_id"] for task in failing_shell.json("tasks", "retry", *ids)] == ids
    assert sorted(failing_shell.settled("done", 2)) == sorted(ids)


def test_a_rejected_task_does_not_stop_the_others_from_being_retried(
    failing_shell: FailingMatchingShell,
) -> None:
    failing_shell.lose("poison-1", "fine-1")
    (done,) = failing_shell.settled("done", 1)
    (dead,) = failing_shell.settled("dead-lettered", 1)
    failing_shell.recover()
    result = failing_shell.run("tasks", "retry", done, dead, "999", "--json")
    assert result.exit_code == 1
    assert [task["task_id"] for task in json.loads(result.stdout)] == [dead]
    assert result.stderr.splitlines() == [
        f"error: task {done}: Task {done} is DONE already (TASK_FINISHED).",
        "error: task 999: There is no task 999 (TASK_NOT_FOUND).",
    ]


def test_discarding_asks_first(failing_shell: FailingMatchingShell) -> None:
    failing_shell.lose("poison-1")
    (dead,) = failing_shell.settled("dead-lettered", 1)
    refused = failing_shell.run("tasks", "discard", dead, stdin="n\n")
    assert refused.exit_code == 1
    assert "Discard 1 task for good?" in refused.stderr
    assert [task["state"] for task in failing_shell.tasks()] == ["TASK_STATE_DEAD_LETTERED"]
    failing_shell.ok("tasks", "discard", dead, "--yes")
    assert failing_shell.tasks() == []
    assert [task["task_id"] for task in failing_shell.tasks("--state", "discarded")] == [dead]


@pytest.mark.parametrize("id", ["0", "-1", "x", str(2**63)])
def test_an_invalid_task_id_is_rejected(id: str) -> None:
    assert Shell().run("tasks", "retry", "--", id).exit_code == 2
