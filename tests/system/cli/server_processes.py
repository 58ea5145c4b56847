"""Real servers in child processes, for commands to talk to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import grpc

from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import HeartbeatResult, WorkerHeartbeat

STOP_SECONDS_MAX = 60
MARK = "listening on"

# A server whose matching, in reality another system, rejects some activities of a namespace until a file of that name
# exists.
WITH_MATCHING_IN_TROUBLE = """
import asyncio, sys
from pathlib import Path
from liveness.app import Server
from liveness.config.settings import Settings

recovered = Path(sys.argv[2])

class InTrouble:
    async def deliver(self, key, activity, task):
        if key.workflow_id.startswith("poison") and not (recovered / key.namespace).exists():
            raise RuntimeError("[bold]no broker[/bold] \\x1b[31m")

async def main():
    settings = Settings(db=f"sqlite:///{sys.argv[1]}", listen="127.0.0.1:0", shards=2, task_attempts_max=1)
    async with Server(settings, select_sink=lambda namespace, task_queue: InTrouble()) as server:
        print("listening on", server.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without LIVENESS_ settings, which would give all servers one HTTP port. Servers do not
    register themselves: tests count workers and events."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIVENESS_")}
    return {**inherited, "LIVENESS_HTTP": "off", "LIVENESS_REGISTER_SELF": "off", **variables}


def liveness_command(*args: str) -> list[str]:
    return [sys.executable, "-P", "-m", "liveness.cli", *args]


def first_address(output: IO[str]) -> tuple[str, list[str]]:
    """Return the address that a starting server prints, and the lines up to it."""
    lines = []
    for line in output:
        lines.append(line)
        if MARK in line:
            return line.split()[-1], lines
    raise AssertionError(f"the server ended before it was ready: {lines}")


@contextmanager
def child_process(
    command: list[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that is always ended with SIGTERM and waited for. `variables`: further ones of its environment."""
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment(), **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def running_server(folder: Path, *flags: str) -> Iterator[str]:
    """Run `liveness serve` on a database in `folder`, and yield its address."""
    with child_process(
        liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "2", *flags), folder
    ) as process:
        assert process.stdout is not None
        yield first_address(process.stdout)[0]


def heartbeat(address: str, namespace: str, beat: WorkerHeartbeat) -> HeartbeatResult:
    with grpc.insecure_channel(address) as channel:
        request = RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=beat)
        return LivenessServiceStub(channel).RecordWorkerHeartbeat(request, timeout=30)
