"""A real Envoy with the configuration from deploy/, in front of real nodes."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import yaml

from liveness.v1 import admin_pb2_grpc, service_pb2_grpc
from tests.certificates import SERVER_NAMES, TlsFolder
from tests.free_ports import free_port

EXAMPLE = Path(__file__).parents[3] / "deploy" / "envoy.yaml"
FOLDER_IN_EXAMPLE = "/etc/envoy/tls"
NAME_IN_EXAMPLE = "liveness.example"
START_ATTEMPTS = 5
READY_SECONDS_MAX = 60


def envoy() -> Path | None:
    """Return Envoy's path; None if there is no wheel for the platform."""
    spec = find_spec("envoy")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bin" / "envoy"
    return program if program.exists() else None


class Envoy:
    """Stands in for a server in the ledger's load: each call goes to the node that Envoy chooses."""

    def __init__(self, program: Path, folder: Path, nodes: list[str], files: TlsFolder) -> None:
        """`files`: the certificate of Envoy, and the authority that signed those of the nodes."""
        self._program = program
        self._files = files
        self._folder = folder
        self._nodes = nodes
        self._process: asyncio.subprocess.Process | None = None
        self.running = True

    async def __aenter__(self) -> Self:
        for _ in range(START_ATTEMPTS):
            port, self._admin_port = free_port(), free_port()
            path = self._folder / "envoy.json"  # Envoy reads JSON as YAML
            path.write_text(json.dumps(self._configuration(port)))
            self._process = await asyncio.create_subprocess_exec(
                self._program, "-c", path, "--disable-hot-restart", "--concurrency", "1", "-l", "warning",
                "--log-path", self._folder / "envoy.log",
                stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if await self._started():
                break
        else:
            raise AssertionError((self._folder / "envoy.log").read_text())
        credentials = grpc.ssl_channel_credentials(self._files.ca_file.read_bytes())
        self.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)
        self.liveness = service_pb2_grpc.LivenessServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    def _configuration(self, port: int) -> dict[str, Any]:
        """Return the example configuration with our addresses, files and names."""
        text = EXAMPLE.read_text(encoding="utf-8")
        text = text.replace(FOLDER_IN_EXAMPLE, str(self._files.folder)).replace(
            NAME_IN_EXAMPLE, SERVER_NAMES[0]
        )
        whole: dict[str, Any] = yaml.safe_load(text)
        [listener], [cluster] = whole["static_resources"]["listeners"], whole["static_resources"]["clusters"]
        listener["address"] = _address(f"127.0.0.1:{port}")
        [group] = cluster["load_assignment"]["endpoints"]
        group["lb_endpoints"] = [{"endpoint": {"address": _address(node)}} for node in self._nodes]
        whole["admin"] = {"address": _address(f"127.0.0.1:{self._admin_port}")}
        return whole

    async def _started(self) -> bool:
        assert self._process is not None
        while self._process.returncode is None:
            try:
                await asyncio.to_thread(self._ask, "/ready")
            except (URLError, ConnectionError):
                await asyncio.sleep(0.05)
            else:
                return True
        return False

    def _ask(self, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{self._admin_port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    async def wait_healthy(self, nodes: int) -> None:
        """Wait until Envoy considers this many nodes healthy."""
        seen = -1
        async with asyncio.timeout(READY_SECONDS_MAX):
            while seen != nodes:
                text = await asyncio.to_thread(self._ask, "/clusters?format=json")
                [cluster] = json.loads(text)["cluster_statuses"]
                states = [host["health_status"] for host in cluster["host_statuses"]]
                seen = sum(set(state) == {"eds_health_status"} for state in states)
                await asyncio.sleep(0.05)

    repeats_calls = True

    def listening_ms(self, since: float, until: float) -> float:
        """Return the most of this time that can have counted as silence."""
        return (until - since) * 1_000


def _address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
