"""The bridge, liveness and Temporal itself are killed and come back: no worker loses its lease, and no rescue is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE
from tests.free_ports import free_port
from tests.system.temporal.conftest import StartWorker
from tests.system.temporal.stage import (
    Process,
    Stage,
    Temporal,
    WorkerProcess,
    eventually,
    plan,
    start_temporal,
    stuck,
)

FLOWS = "flows"
SILENCE_S = 4
"""Longer than three heartbeat intervals."""


class OwnTemporal:
    """A server on a file, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.process = self.start()
        self.temporal = Temporal(f"127.0.0.1:{self._port}")

    def start(self) -> Process:
        self.process = start_temporal(self._folder, self._port, self._folder / "temporal.db")
        return self.process


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnTemporal]:
    own = OwnTemporal(tmp_path)
    yield own
    own.process.stop()


@pytest.fixture
def stage(own: OwnTemporal, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, own.temporal)
    flows = WorkerProcess(own.temporal.address, FLOWS, tmp_path, workflows=True, activities=False)
    flows.wait_event("running")
    yield stage
    flows.kill()
    flows.stop()
    stage.stop()


def test_nothing_is_lost_when_processes_restart(
    own: OwnTemporal, stage: Stage, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    worker = start_worker()
    held = stage.temporal.start(plan(task_queue, stuck("a", until), maximum_attempts=1), flows=FLOWS)
    worker.wait_event("started", activity="a", attempt=1)
    key = stage.known_worker(worker, task_queue).worker_instance_key
    recorded = stage.liveness.worker(key).last_heartbeat_time.ToMilliseconds()

    # The bridge is away for longer than the lease of three seconds.
    stage.bridge.kill()
    killed_s = time.monotonic()
    eventually(lambda: time.monotonic() > killed_s + SILENCE_S, "time stands still")
    stage.bridge.stop()
    stage.bridge = stage.start_bridge()
    eventually(
        lambda: (
            stage.liveness.worker(key).last_heartbeat_time.ToMilliseconds() > recorded + SILENCE_S * 1_000
        ),
        "no heartbeat after the restart of the bridge",
    )
    assert_same_lease(stage, key)

    # While liveness is away, a hand-out passes; it is recorded afterwards.
    stage.liveness_process.kill()
    passed = stage.temporal.start(plan(task_queue, stuck("b", until)), flows=FLOWS)
    worker.wait_event("started", activity="b", attempt=1)
    stage.liveness_process.stop()
    stage.liveness_process = stage.start_liveness()
    eventually(lambda: len(stage.liveness.worker(key).bound_activities) == 2, "it was not recorded later")
    assert_same_lease(stage, key)

    # The worker dies while Temporal is away: its rescues wait.
    second = start_worker()
    own.process.kill()
    worker.kill()
    eventually(lambda: stage.liveness.worker(key).state != WORKER_STATE_ACTIVE, "the lease did not end")
    own.process.stop()
    own.start()
    for _ in range(2):
        second.wait_event("started", attempt=2)
    assert stage.temporal.result(held) == ["a by attempt 2"]
    assert stage.temporal.result(passed) == ["b by attempt 2"]


def assert_same_lease(stage: Stage, key: str) -> None:
    worker = stage.liveness.worker(key)
    assert worker.state == WORKER_STATE_ACTIVE
    assert worker.lease_epoch == 1
