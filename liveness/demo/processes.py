"""Start, kill, freeze, continue and stop the processes of the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from liveness.clock import Clock
from liveness.demo.plan import DemoFailed, Plan

START_TIMEOUT_SECONDS = 60
POLL_MS = 20
STOP_TIMEOUT_MS = 5_000
"""How long a process may take to stop before it is killed."""
READY_MARKER = "listening on"


class ProcessState(StrEnum):
    """The state of a process as the demo knows it. The server has to find it out by itself."""

    STARTING = "starting"
    RUNNING = "running"
    KILLED = "killed"
    FROZEN = "frozen"
    ENDED = "ended"
    """The process has ended, or was asked to end."""


@dataclass(slots=True)
class ChildProcess:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    process_state: ProcessState = ProcessState.STARTING
    fault_ms: int = 0
    """When it was killed or frozen last."""
    was_frozen: bool = False


class DemoProcesses:
    def __init__(self, plan: Plan, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._plan = plan
        self._folder = folder
        # The user's LIVENESS_ variables are meant for another server. A new server needs no grace for the workers of an
        # earlier run.
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith("LIVENESS_")},
            "LIVENESS_TAKEOVER_GRACE_MS": "0",
        }
        self._clock = clock
        self._server: ChildProcess | None = None
        self.address = ""
        self.workers: dict[str, ChildProcess] = {}

    async def start_server(self) -> None:
        database = f"sqlite:///{self._folder / 'liveness.db'}"
        server = self._server = self._start(
            "server",
            *("liveness.cli", "serve", "--db", database, "--listen", "127.0.0.1:0", "--shards", "4"),
            *("--http", "off"),
            *("--log-level", "warning", "--log-format", "console"),
        )
        deadline_ms = self._clock.monotonic_ms() + START_TIMEOUT_SECONDS * 1_000
        while True:
            ended = server.process.poll() is not None
            for line in server.log.read_text(errors="replace").splitlines():
                if READY_MARKER in line:
                    self.address = line.split()[-1]
                    server.process_state = ProcessState.RUNNING
                    return
            if ended or self._clock.monotonic_ms() > deadline_ms:
                raise DemoFailed(f"the server did not start{_last_log_line(server)}")
            await self._clock.sleep(POLL_MS)

    def start_worker(self) -> ChildProcess:
        name = f"worker-{len(self.workers) + 1}"
        plan = self._plan
        child = self._start(
            name,
            *("liveness.demo.worker", "--address", self.address, "--name", name),
            *("--folder", str(self._folder), "--slots", str(plan.slots)),
            *("--lease", str(plan.lease_s), "--grace", str(plan.grace_s)),
        )
        self.workers[name] = child
        return child

    def kill(self, child: ChildProcess) -> None:
        """Kill with SIGKILL, which the process cannot handle."""
        child.process.kill()
        child.process_state, child.fault_ms = ProcessState.KILLED, self._clock.monotonic_ms()

    def freeze(self, child: ChildProcess) -> None:
        child.process.send_signal(signal.SIGSTOP)
        child.process_state, child.fault_ms = ProcessState.FROZEN, self._clock.monotonic_ms()
        child.was_frozen = True

    def resume(self, child: ChildProcess) -> None:
        child.process.send_signal(signal.SIGCONT)
        child.process_state = ProcessState.RUNNING

    def undo_freeze(self, child: ChildProcess) -> None:
        """Continue a frozen process, and count it as never frozen."""
        self.resume(child)
        child.fault_ms, child.was_frozen = 0, False

    def check_alive(self) -> None:
        """Fail the demo if a process ended that the demo did not end."""
        for child in self._all_children():
            expected = child.process_state in (ProcessState.KILLED, ProcessState.ENDED)
            if child.process.poll() is not None and not expected:
                raise DemoFailed(f"{child.name} ended by itself{_last_log_line(child)}")

    async def stop_workers(self) -> None:
        await self._stop([child for child in self.workers.values() if child.process.poll() is None])

    async def stop_all(self) -> None:
        """Stop all processes, and kill those that do not stop in time."""
        try:
            await self.stop_workers()
            if self._server is not None:
                await self._stop([self._server])
        finally:
            for child in self._all_children():
                child.process.kill()
                child.process.wait()
                if child.process.stdin is not None:
                    child.process.stdin.close()

    def _start(self, name: str, *command: str) -> ChildProcess:
        log = self._folder / f"{name}.log"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "liveness.demo.child_process", *command],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C must reach only the demo, which then stops the others
                )
        except OSError as error:
            raise DemoFailed(f"{name} could not be started: {error}") from error
        return ChildProcess(name, process, log)

    async def _stop(self, children: list[ChildProcess]) -> None:
        for child in children:
            child.process_state = ProcessState.ENDED
            child.process.terminate()
            child.process.send_signal(signal.SIGCONT)
        deadline_ms = self._clock.monotonic_ms() + STOP_TIMEOUT_MS
        while any(child.process.poll() is None for child in children):
            if self._clock.monotonic_ms() > deadline_ms:
                break
            await self._clock.sleep(POLL_MS)
        for child in children:
            if child.process.poll() is None:
                child.process.kill()

    def _all_children(self) -> list[ChildProcess]:
        return [*self.workers.values(), *([self._server] if self._server is not None else [])]


def _last_log_line(child: ChildProcess) -> str:
    lines = [line for line in child.log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].removeprefix('error: ')}" if lines else ""
