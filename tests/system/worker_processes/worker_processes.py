"""Worker processes that tests start, kill, stop and continue, and their notes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tests.system.server.server_process import ROOT, environment
from tests.system.worker_processes.worker_notes import Action, Note, read_notes
from tests.system.worker_processes.worker_program import Options

SECONDS_MAX = 60
LOOK_SECONDS = 0.02
STORY_LINES = 12

T = TypeVar("T")


async def until(
    condition: Callable[[], T | None], what: Callable[[], object] = lambda: "the condition never became true"
) -> T:
    """Wait until `condition` returns a true value, and return it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_MAX
    while not (found := condition()):
        assert loop.time() < deadline, what()
        await asyncio.sleep(LOOK_SECONDS)
    return found


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One run of a worker's program."""

    name: str
    options: Options
    log: Path
    process: asyncio.subprocess.Process

    # -- faults

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        """Send SIGKILL, which also ends a stopped process."""
        if self.process.returncode is None:
            self.process.kill()
        await self.end()

    def freeze(self) -> None:
        """Send SIGSTOP, and return when the process has stopped."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    async def end(self) -> int:
        """Wait for the end. Returns the exit code, or minus the number of the signal that ended it."""
        return await asyncio.wait_for(self.process.wait(), SECONDS_MAX)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    # -- notes

    @property
    def notes(self) -> list[Note]:
        return read_notes(Path(self.options.notes))

    def noted(self, action: Action, activity: str = "", attempt: int = 0) -> list[Note]:
        return [
            note
            for note in self.notes
            if note.action is action
            and (not activity or note.activity == activity)
            and (not attempt or note.attempt == attempt)
        ]

    async def wait_for_note(self, action: Action, activity: str = "", *, attempt: int = 0) -> Note:
        """Wait for the note, and return the last one that matches."""
        return await until(
            lambda: found[-1] if (found := self.noted(action, activity, attempt)) else None,
            lambda: f"no {action} {activity} from {self.name}:\n{self.recent_notes()}",
        )

    @property
    def count(self) -> Note | None:
        """Return the SDK's count of its attempts."""
        counts = self.noted(Action.COUNTED)
        return counts[-1] if counts else None

    def recent_notes(self) -> str:
        """Return the last notes as text."""
        log = self.log.read_text(errors="replace").splitlines()
        return "\n".join(map(str, [*self.notes[-STORY_LINES:], *log[-STORY_LINES:]]))


@dataclass(slots=True)
class WorkerGroup:
    """All workers of a test, in one namespace, with their notes and gates in one folder."""

    folder: Path
    namespace: str
    address: str
    """Of the server itself, not of a proxy."""
    members: list[WorkerProcess]

    async def join(
        self,
        name: str,
        *,
        lease: float,
        grace: float | None,
        address: str = "",
        key: str = "",
        task_queue: str = "queue",
        slots: int = 4,
        stop_timeout: float = 30.0,
        wait: bool = True,
    ) -> WorkerProcess:
        """Start a worker. It is registered when this returns, unless `wait` is false."""
        options = Options(
            address=address or self.address,
            namespace=self.namespace,
            task_queue=task_queue,
            key=key or name,
            lease=lease,
            grace=grace,
            slots=slots,
            stop_timeout=stop_timeout,
            notes=str(self.folder / f"{name}.jsonl"),
            gates=str(self.gates),
            insist_address=self.address,
            parent=os.getpid(),
        )
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tests.system.worker_processes.worker_program"),
                json.dumps(asdict(options)),
                cwd=ROOT,
                env=environment({"PYTHONPATH": str(ROOT)}),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
            )
        worker = WorkerProcess(name, options, log, process)
        self.members.append(worker)
        if wait:
            await worker.wait_for_note(Action.RUNNING)
        return worker

    def open_gate(self, activity: str, key: str = "") -> None:
        """Open the gate of an activity, for one worker or for all."""
        (self.gates / (f"{activity}@{key}" if key else activity)).touch()

    async def close(self) -> None:
        """Kill all workers, however the test ended."""
        for worker in self.members:
            await worker.kill()

    @property
    def gates(self) -> Path:
        gates = self.folder / "gates"
        gates.mkdir(exist_ok=True)
        return gates

    @property
    def notes(self) -> list[Note]:
        return sorted((note for worker in self.members for note in worker.notes), key=lambda note: note.at)

    def noted(self, action: Action, activity: str = "") -> list[Note]:
        return [
            note
            for note in self.notes
            if note.action is action and (not activity or note.activity == activity)
        ]

    def recent_notes(self) -> str:
        return "\n".join(f"{worker.name}:\n{worker.recent_notes()}" for worker in self.members)
