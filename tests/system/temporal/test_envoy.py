"""Several bridges behind a load balancer, and Temporal behind TLS, client certificates and an API key: a real Envoy plays both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE
from tests.certificates import Authority, make_tls_folder
from tests.free_ports import free_port
from tests.system.temporal.conftest import StartWorker
from tests.system.temporal.envoy_process import EnvoyProcess, before_bridges, before_temporal
from tests.system.temporal.stage import Process, Stage, Temporal, eventually, plan, start_bridge, stuck

API_KEY = "key-of-the-bridge"


class Balanced:
    """Two bridges behind an Envoy that gives each call to the next one."""

    def __init__(self, folder: Path, temporal: Temporal) -> None:
        self.stage = Stage(folder, temporal, "--hints", "off")
        second = f"127.0.0.1:{free_port()}"
        self.second = start_bridge(
            folder,
            int(second.rpartition(":")[2]),
            temporal.address,
            self.stage.liveness.address,
            "--hints",
            "off",
        )
        port = free_port()
        self.envoy = EnvoyProcess(folder, before_bridges(port, [self.stage.address, second]), port)
        eventually(lambda: self.envoy.healthy() == 2, "Envoy does not reach both bridges")

    def stop(self) -> None:
        for process in (self.envoy, self.second):
            process.stop()
        self.stage.stop()


@pytest.fixture
def balanced(temporal: Temporal, tmp_path: Path) -> Iterator[Balanced]:
    balanced = Balanced(tmp_path, temporal)
    yield balanced
    balanced.stop()


def test_bridges_behind_a_load_balancer_share_the_calls_of_a_worker(
    balanced: Balanced, flows: str, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    stage = balanced.stage
    first = start_worker(balanced.envoy.address)
    key = stage.known_worker(first, task_queue).worker_instance_key
    many = [{"name": f"a{number}"} for number in range(40)]
    done = stage.temporal.start(plan(task_queue, *many), flows=flows)
    assert len(stage.temporal.result(done)) == len(many)
    eventually(
        lambda: not stage.liveness.worker(key).bound_activities,
        "what ended through the other bridge is bound",
    )
    assert 0 < stage.bindings()["poll"] < len(many), "one bridge had all calls"
    held = [stuck("held", until)] * 4
    workflow_id = stage.temporal.start(plan(task_queue, *held, maximum_attempts=1), flows=flows)
    for _ in held:
        first.wait_event("started", activity="held", attempt=1)

    # One bridge less: the worker goes on through the other, and keeps its lease.
    balanced.second.kill()
    eventually(lambda: balanced.envoy.healthy() == 1, "Envoy does not notice the end of a bridge")
    recorded = stage.liveness.worker(key).last_heartbeat_time.ToMilliseconds()
    eventually(
        lambda: stage.liveness.worker(key).last_heartbeat_time.ToMilliseconds() > recorded + 4_000,
        "no heartbeat through the bridge that is left",
    )
    worker = stage.liveness.worker(key)
    assert (worker.state, worker.lease_epoch) == (WORKER_STATE_ACTIVE, 1)

    second = start_worker(balanced.envoy.address)
    first.kill()
    for _ in held:
        second.wait_event("started", activity="held", attempt=2)
    assert stage.temporal.result(workflow_id) == ["held by attempt 2"] * 4


def test_a_bridge_shows_temporal_its_certificate_and_its_api_key(
    temporal: Temporal, flows: str, task_queue: str, start_worker: StartWorker, tmp_path: Path, until: Path
) -> None:
    authority = Authority()
    files = make_tls_folder(tmp_path / "tls", authority)
    client = [tmp_path / "tls" / name for name in ("client.pem", "client.key")]
    authority.issue_client("bridge").write(*client)
    (tmp_path / "api-key").write_text(API_KEY + "\n")
    port = free_port()
    envoy: Process = EnvoyProcess(
        tmp_path, before_temporal(port, temporal.address, files.folder, API_KEY), port
    )
    flags = [
        *("--upstream", f"127.0.0.1:{port}", "--upstream-server-name", "localhost"),
        *("--upstream-ca-file", str(files.ca_file), "--upstream-api-key-file", str(tmp_path / "api-key")),
        *("--upstream-cert-file", str(client[0]), "--upstream-key-file", str(client[1])),
        *("--tls-worker-ca-file", str(files.ca_file), *files.flags),
    ]
    stage = Stage(tmp_path, temporal, *flags)
    try:
        tls = {"ca": str(files.ca_file), "cert": str(client[0]), "key": str(client[1]), "domain": "localhost"}
        first = start_worker(stage.address, tls=tls)
        workflow_id = stage.temporal.start(
            plan(task_queue, stuck("a", until), maximum_attempts=1), flows=flows
        )
        first.wait_event("started", activity="a", attempt=1)
        second = start_worker(stage.address, tls=tls)
        first.kill()
        second.wait_event("started", activity="a", attempt=2)
        assert stage.temporal.result(workflow_id) == ["a by attempt 2"]
    finally:
        stage.stop()
        envoy.stop()
