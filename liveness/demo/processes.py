"""The processes of the demo: started, killed, frozen, continued, and all ended when the demo ends."""

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
"""For a process that was asked to end, before it is made to."""
READY_MARKER = "listening on"


class ProcessState(StrEnum):
    """Of a process, as the demo knows it; the server has to find out."""

    STARTING = "starting"
    RUNNING = "running"
    KILLED = "killed"
    FROZEN = "frozen"
    ENDED = "ended"
    """Or asked to."""


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
        # What somebody has set for a server of theirs is not for this one.
        # And a server that starts for the first time owes no grace to workers of an earlier run.
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
        """kill -9: the process learns nothing of it."""
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
        """As if it had not been frozen."""
        self.resume(child)
        child.fault_ms, child.was_frozen = 0, False

    def check_alive(self) -> None:
        """Nobody dies here unless it is in the plot."""
        for child in self._all_children():
            expected = child.process_state in (ProcessState.KILLED, ProcessState.ENDED)
            if child.process.poll() is not None and not expected:
                raise DemoFailed(f"{child.name} ended by itself{_last_log_line(child)}")

    async def stop_workers(self) -> None:
        await self._stop([child for child in self.workers.values() if child.process.poll() is None])

    async def stop_all(self) -> None:
        """Whatever happened before, nobody is left afterwards."""
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
                    start_new_session=True,  # so that Ctrl-C reaches the demo alone, which then ends the others
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
