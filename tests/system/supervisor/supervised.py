"""`liveness supervise` as a process, and what its server says about the components."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from liveness.domain.component import ComponentStatus
from liveness.v1.activity_pb2 import Activity, ListActivitiesRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.component_pb2 import Component, ComponentAction
from liveness.v1.component_service_pb2 import (
    GetComponentLogsRequest,
    ListComponentGroupsRequest,
    ListComponentsRequest,
    OrderComponentsRequest,
)
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.system.cli.server_processes import environment, liveness_command

LIMIT_S = 20.0
PROGRAMS = Path(__file__).with_name("programs")

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], what: str | Callable[[], str]) -> T:
    """Wait for a state that another process reaches without telling."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            if found := ask():
                return found
        except grpc.RpcError:
            pass  # a server that is just restarting
        time.sleep(0.02)
    raise AssertionError(what if isinstance(what, str) else what())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def program(name: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / f"{name}.py")]


class Supervised:
    """One supervisor after the other, with one state directory, in one namespace of one server."""

    def __init__(self, folder: Path, address: str, namespace: str) -> None:
        self.folder = folder
        self.address = address
        self.namespace = namespace
        self.process: subprocess.Popen[str] | None = None
        self._channel = grpc.insecure_channel(address)
        self.components_stub = ComponentServiceStub(self._channel)
        self.liveness = LivenessServiceStub(self._channel)
        self.activities_stub = ActivityServiceStub(self._channel)

    # -- the process

    def start(
        self, *arguments: str, state: str = "state", before: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """`arguments`: what follows the connection on the command line. `before`: a command that runs it."""
        command = [*before, *liveness_command(
            "supervise", "--address", self.address, "--namespace", self.namespace,
            "--state-dir", str(self.folder / state), "--no-table", *arguments,
        )]  # fmt: skip
        log = (self.folder / "supervisor.log").open("a")
        with log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )
        return self.process

    def start_config(self, text: str, **variables: str) -> subprocess.Popen[str]:
        self.configure(text)
        return self.start("--config", str(self.folder / "workers.toml"), **variables)

    def configure(self, text: str) -> None:
        (self.folder / "workers.toml").write_text(text)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._channel.close()

    @property
    def log(self) -> str:
        return (self.folder / "supervisor.log").read_text()

    # -- what the server knows

    def components(self, group: str = "") -> list[Component]:
        request = ListComponentsRequest(namespace=self.namespace, group=group, page_size=1_000)
        return list(self.components_stub.ListComponents(request, timeout=LIMIT_S).components)

    def component(self, index: int = 0, group: str = "") -> Component | None:
        return next((each for each in self.components(group) if each.index == index), None)

    def when(
        self,
        status: ComponentStatus,
        index: int = 0,
        wanted: Callable[[Component], object] = lambda _: True,
        group: str = "g",
    ) -> Component:
        """Wait until the component has the status, and is as wanted."""

        def ask() -> Component | None:
            found = self.component(index, group)
            return found if found and int(found.status) == status and wanted(found) else None

        return eventually(ask, lambda: f"component {index} did not become {status.name}: {self.log}")

    def all_have(self, status: ComponentStatus, count: int) -> list[Component]:
        def ask() -> list[Component]:
            found = self.components()
            return found if sum(int(each.status) == status for each in found) == count else []

        return eventually(ask, lambda: f"not {count} components became {status.name}: {self.log}")

    def activities(self) -> dict[str, Activity]:
        request = ListActivitiesRequest(namespace=self.namespace)
        found = self.activities_stub.ListActivities(request, timeout=LIMIT_S).activities
        return {activity.id.workflow_id: activity for activity in found}

    def order(self, action: ComponentAction.ValueType, group: str = "g", **fields: Any) -> None:
        """Give an order and wait until it was carried out."""
        number = self.send_order(action, group, **fields)

        def is_done() -> bool:
            groups = self.components_stub.ListComponentGroups(
                ListComponentGroupsRequest(namespace=self.namespace), timeout=LIMIT_S
            ).groups
            return all(order.number != number for each in groups for order in each.waiting_orders)

        eventually(is_done, lambda: f"order {number} was not carried out: {self.log}")

    def send_order(self, action: ComponentAction.ValueType, group: str = "g", **fields: Any) -> int:
        request = OrderComponentsRequest(namespace=self.namespace, group=group, action=action, **fields)
        return self.components_stub.OrderComponents(request, timeout=LIMIT_S).order_number

    def output(self, index: int = 0, group: str = "g") -> str:
        request = GetComponentLogsRequest(
            namespace=self.namespace, worker_instance_key=f"worker:{group}:{index}", lines=1_000
        )
        return "\n".join(self.components_stub.GetComponentLogs(request, timeout=LIMIT_S).lines)


def kill(component: Component, how: signal.Signals = signal.SIGKILL) -> None:
    os.kill(component.process_id, how)
