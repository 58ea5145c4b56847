"""A server process updates its metrics by itself, and Prometheus reads them over HTTP."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import grpc
import pytest

from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.free_ports import free_port
from tests.integration.telemetry.exposition import Exposition
from tests.system.cli.server_processes import child_process, heartbeat, liveness_command

SECONDS_MAX = 30
GET_SYSTEM_INFO = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"


class Running(NamedTuple):
    grpc: str
    url: str

    def metrics(self) -> Exposition:
        with urlopen(f"{self.url}metrics", timeout=SECONDS_MAX) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return Exposition(answer.read())

    def fleet(self, query: str = "") -> dict[str, Any]:
        with urlopen(Request(f"{self.url}v1/fleet{query}"), timeout=SECONDS_MAX) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    command = liveness_command("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "2")
    with child_process(command, tmp_path) as process:
        yield _ready(process)


def _ready(process: subprocess.Popen[str]) -> Running:
    assert process.stdout is not None
    address = url = ""
    for line in process.stdout:
        if "listening on" in line:
            address = line.split()[-1]
        if "dashboard" in line:
            url = line.split()[-1]
        if line.startswith("Ctrl-C"):
            return Running(address, url)
    raise AssertionError("the server ended before it was ready")


def test_prometheus_can_read_a_server_over_http(running: Running) -> None:
    heartbeat(running.grpc, "orders", WorkerHeartbeat(worker_instance_key="w"))
    now = running.metrics()
    assert now.value("liveness_heartbeats_total", namespace="orders") == 1
    assert now.value("liveness_workers", namespace="orders", state="ACTIVE") == 1
    assert now.value("liveness_shards_serving") == 2
    while not running.metrics().value("liveness_loop_lag_seconds_count"):
        pass  # the event loop probe runs 20 times a second


def test_a_server_publishes_the_metrics_of_its_own_bridge(tmp_path: Path) -> None:
    nobody, listen = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = liveness_command("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "2")
    command += ["--bridge-temporal", nobody, "--bridge-listen", listen]
    with child_process(command, tmp_path) as process, grpc.insecure_channel(listen) as channel:
        running = _ready(process)
        call: Any = channel.unary_unary(GET_SYSTEM_INFO)
        with pytest.raises(grpc.RpcError):
            call(b"", timeout=SECONDS_MAX)
        now = running.metrics()
        assert now.value("liveness_bridge_calls_total", method="GetSystemInfo", code="UNAVAILABLE") == 1
        assert now.value("liveness_bridge_added_seconds_count") == 1
        assert now.value("liveness_shards_serving") == 2


def test_a_server_takes_samples_by_itself(running: Running) -> None:
    heartbeat(running.grpc, "orders", WorkerHeartbeat(worker_instance_key="w"))
    while not (samples := running.fleet("?namespace=orders&range=60s").get("samples")):
        pass  # one sample every two seconds
    assert samples[0]["heartbeats"] == "1"
    assert samples[0]["active"] == "1"
    assert samples[0]["time"][-2] in "02468"
    assert running.fleet()["interval"] == "2s"
