"""Processes go on without a server, and what happened meanwhile is reported when it is back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from liveness.domain.component import ComponentStatus
from liveness.v1.service_pb2 import GetWorkerHistoryRequest
from tests.free_ports import free_port
from tests.system.cli.server_processes import child_process, first_address, liveness_command
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, is_running, program


def test_crashes_without_a_server_are_restarted_and_reported_later(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    serve = liveness_command("serve", "--listen", address, "--shards", "2")
    supervised = Supervised(tmp_path, address, "default")
    state = tmp_path / "state"
    try:
        with child_process(serve, tmp_path) as server:
            assert server.stdout is not None
            first_address(server.stdout)
            supervised.start_config(
                f"[group.g]\ncommand = {program('framed')!r}\nlease = '5s'\n[group.g.restart]\nmin_delay = '100ms'\n"
            )
            first = supervised.when(ComponentStatus.HEALTHY)
            server.send_signal(signal.SIGKILL)
            server.wait()
        eventually(lambda: "processes go on without it" in supervised.log, "it did not notice")
        assert is_running(first.process_id)
        log = state / "output" / "g" / "0.log"
        starts = log.read_text().count("started")
        os.kill(first.process_id, signal.SIGKILL)
        eventually(lambda: log.read_text().count("started") == starts + 1, "it was not restarted")
        with child_process(serve, tmp_path) as server:
            assert server.stdout is not None
            first_address(server.stdout)
            second = supervised.when(
                ComponentStatus.HEALTHY, wanted=lambda component: component.restart_count == 1
            )
            assert second.last_exit.signal == "SIGKILL"
            history = supervised.liveness.GetWorkerHistory(
                GetWorkerHistoryRequest(namespace="default", worker_instance_key="worker:g:0"),
                timeout=LIMIT_S,
            )
            changes = [event for event in history.events if event.type == "ComponentChanged"]
            assert len(changes) >= 5
            assert supervised.end() == 0
    finally:
        supervised.close()
