"""One Temporal server, one liveness and one bridge for all tests of this folder; each test has its own task queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port
from tests.system.temporal.stage import Process, Stage, Temporal, WorkerProcess, temporal_server

FLOWS = "flows"
_queues = count(1)


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Temporal]:
    port = free_port()
    with temporal_server(tmp_path_factory.mktemp("temporal"), port):
        yield Temporal(f"127.0.0.1:{port}")


@pytest.fixture(scope="session")
def flows(temporal: Temporal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The task queue of a process that runs workflows, directly at the server, and lives through all tests."""
    worker = WorkerProcess(
        temporal.address, FLOWS, tmp_path_factory.mktemp("flows"), workflows=True, activities=False
    )
    worker.wait_event("running")
    yield FLOWS
    worker.stop()


@pytest.fixture(scope="session")
def stage(temporal: Temporal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"), temporal)
    yield stage
    stage.stop()


@pytest.fixture
def task_queue() -> str:
    return f"queue-{next(_queues)}"


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(stage: Stage, task_queue: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers of the test's own task queue, at the bridge unless another address is given."""
    started: list[Process] = []

    def start(address: str = "", **options: Any) -> WorkerProcess:
        worker = WorkerProcess(
            address or stage.address, options.pop("queue", task_queue), tmp_path, **options
        )
        started.append(worker)
        worker.wait_event("running")
        return worker

    yield start
    for process in started:
        process.kill()
        process.stop()


@pytest.fixture
def until(tmp_path: Path) -> Path:
    """Stuck activities end when this file exists."""
    return tmp_path / "until"
