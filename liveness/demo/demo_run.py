"""Run the whole demo: from an empty folder to the ledger, and clean up afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from liveness.clock import Clock
from liveness.demo.fault_script import FaultScript
from liveness.demo.ledger import Completion, Ledger, compute_ledger
from liveness.demo.note_collector import NoteCollector
from liveness.demo.plan import DemoFailed, Plan
from liveness.demo.processes import ChildProcess, DemoProcesses, ProcessState
from liveness.demo.server_client import ServerClient, ServerSnapshot
from liveness.demo.timeline import Timeline, TimelineEntry
from liveness.demo.view import Frame, WorkerRow
from liveness.demo.workload import Workload
from liveness.sdk import ActivityInfo, ActivityState
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE

TICK_MS = 100
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the demo to stop."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(by.name)
        self.by = by


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    ledger: Ledger
    seed: int
    seconds: float
    workers: int
    killed: int
    frozen: int
    moved: int
    """Attempts that the server took from a worker whose lease had ended."""
    lapse_seconds: Mapping[str, float]
    """By worker: seconds from the kill or freeze until its lease ended."""
    folder: Path | None
    """The folder with all files; None if it was removed."""

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self.ledger),
            "clean": self.ledger.is_clean,
            "seed": self.seed,
            "seconds": self.seconds,
            "workers": self.workers,
            "killed": self.killed,
            "frozen": self.frozen,
            "moved": self.moved,
            "lapse_seconds": dict(self.lapse_seconds),
            "folder": None if self.folder is None else str(self.folder),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Callbacks of the caller: `on_entry` for each line of the timeline, `on_frame` several times a second."""

    on_entry: Callable[[TimelineEntry], None]
    on_frame: Callable[[Frame], None]


async def run_demo(
    plan: Plan, observer: Observer, environment: Mapping[str, str], clock: Clock, *, keep: bool
) -> DemoResult:
    """Run the demo. Raises DemoFailed or Interrupted. All processes have ended when it returns or raises."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="liveness-demo-"))
    except OSError as error:
        raise DemoFailed(f"no temporary folder could be created: {error}") from error
    kept = keep
    interruptible = _Interruptible()
    try:
        with interruptible:
            processes = DemoProcesses(plan, folder, environment, clock)
            try:
                outcome = await _DemoRun(plan, folder, processes, observer, clock).run()
            finally:
                await processes.stop_all()
        kept = kept or not outcome.ledger.is_clean
    except asyncio.CancelledError:
        if interruptible.by is not None:
            raise Interrupted(interruptible.by) from None
        raise
    finally:
        if not kept:
            rmtree(folder, ignore_errors=True)
    return replace(outcome, folder=folder if kept else None)


class _Interruptible:
    """Cancels the task that entered this context manager when a signal arrives."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    def __enter__(self) -> _Interruptible:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            self.by = number
            task.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


class _DemoRun:
    def __init__(
        self, plan: Plan, folder: Path, processes: DemoProcesses, observer: Observer, clock: Clock
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._processes = processes
        self._observer = observer
        self._clock = clock
        self._timeline = Timeline(processes, clock.monotonic_ms, observer.on_entry)
        self._note_collector = NoteCollector(folder, processes, self._timeline.add_note)

    async def run(self) -> DemoResult:
        self._timeline.add("the demo starts a server")
        self._observer.on_frame(self._frame(ServerSnapshot()))
        await self._processes.start_server()
        self._timeline.add(f"the server listens on {self._processes.address}")
        server_client = ServerClient(self._processes.address)
        try:
            async with asyncio.timeout(self._plan.limit_s):
                await _run_until_script_ends(self._run_script(server_client), self._watch(server_client))
            self._tick(server_client)
            ledger = await self._compute_ledger(server_client)
        except TimeoutError as error:
            raise DemoFailed(f"the work was not done within {self._plan.limit_s:.0f} s") from error
        finally:
            server_client.close()
        return self._result(ledger)

    async def _run_script(self, server_client: ServerClient) -> None:
        plan, random = self._plan, Random(self._plan.seed)
        for _ in range(plan.workers):
            self._processes.start_worker()
        self._workload = Workload(plan, self._folder, server_client, self._clock, random)
        fault_script = FaultScript(
            plan,
            self._processes,
            server_client,
            self._note_collector,
            self._workload,
            self._timeline,
            self._clock,
            random,
        )
        while not all(
            child.process_state is ProcessState.RUNNING for child in self._processes.workers.values()
        ):
            await self._clock.sleep(TICK_MS)
        await self._workload.schedule_first()
        self._timeline.add(f"{plan.activities} files are to be hashed; the first are scheduled")
        scheduling = asyncio.create_task(self._workload.schedule_gradually())
        try:
            await fault_script.run()
            await scheduling
        finally:
            scheduling.cancel()
        await self._workload.schedule_rest()
        while not self._is_done(server_client):
            await self._clock.sleep(TICK_MS)
        self._timeline.add("all activities are completed; the workers are stopped")
        await self._processes.stop_workers()

    def _is_done(self, server_client: ServerClient) -> bool:
        """Whether all activities are completed, the events of all completions have arrived, the server has noticed every fault,
        and every zombie has got its answer."""
        children = self._processes.workers.values()
        return (
            server_client.snapshot.count(ActivityState.COMPLETED) == self._plan.activities
            and len(server_client.completions) == self._plan.activities
            and all(child.name in self._timeline.detection_ms for child in children if child.fault_ms)
            and not any(
                self._note_collector.in_progress(child.name)
                for child in children
                if child.process_state is not ProcessState.KILLED
            )
        )

    async def _watch(self, server_client: ServerClient) -> None:
        while True:
            await server_client.refresh()
            self._tick(server_client)
            await self._clock.sleep(TICK_MS)

    def _tick(self, server_client: ServerClient) -> None:
        self._processes.check_alive()
        for event in server_client.new_events():
            self._timeline.add_event(event)
        self._note_collector.read_notes()
        for child in self._processes.workers.values():
            if child.process_state is ProcessState.STARTING and child.name in server_client.snapshot.workers:
                child.process_state = ProcessState.RUNNING
        self._observer.on_frame(self._frame(server_client.snapshot))

    def _frame(self, snapshot: ServerSnapshot) -> Frame:
        seconds = self._timeline.elapsed_ms // 1_000
        return Frame(
            title=f"leases of {self._plan.lease_s:g} s · {self._processes.address or 'no server yet'} · seed {self._plan.seed}",
            time=f"{seconds // 60}:{seconds % 60:02}",
            workers=[self._row(snapshot, child) for child in self._processes.workers.values()],
            completed=snapshot.count(ActivityState.COMPLETED),
            running=snapshot.count(ActivityState.STARTED),
            waiting=snapshot.count(ActivityState.AVAILABLE, ActivityState.WAITING),
            total=self._plan.activities,
            timeline=self._timeline.lines,
        )

    def _row(self, snapshot: ServerSnapshot, child: ChildProcess) -> WorkerRow:
        worker = snapshot.workers.get(child.name)
        active = worker is not None and worker.state == WORKER_STATE_ACTIVE
        left_ms = 0
        if worker is not None and active:
            left_ms = max(worker.lease_deadline.ToMilliseconds() - self._clock.wall_ms(), 0)
        return WorkerRow(
            name=child.name,
            process_state=child.process_state,
            server_state="" if worker is None else "ACTIVE" if active else "INACTIVE",
            suspect=worker is not None and worker.suspect,
            epoch=0 if worker is None else worker.lease_epoch,
            lease_left=left_ms / (self._plan.lease_s * 1_000),
            lease_left_s=left_ms / 1_000,
            holds=snapshot.held_by(child.name),
        )

    async def _compute_ledger(self, server_client: ServerClient) -> Ledger:
        await server_client.refresh()
        done = [
            await server_client.describe(activity)
            for activity in server_client.snapshot.activities
            if activity.state is ActivityState.COMPLETED
        ]
        completions = [_completion(activity) for activity in done]
        return compute_ledger(
            self._workload.activity_names, completions, server_client.completions, self._note_collector.notes
        )

    def _result(self, ledger: Ledger) -> DemoResult:
        children = self._processes.workers.values()
        delays_ms = self._timeline.detection_ms
        return DemoResult(
            ledger=ledger,
            seed=self._plan.seed,
            seconds=round(self._timeline.elapsed_ms / 1_000, 1),
            workers=len(children),
            killed=sum(child.process_state is ProcessState.KILLED for child in children),
            frozen=sum(child.was_frozen for child in children),
            moved=self._timeline.moved,
            lapse_seconds={name: round(ms / 1_000, 2) for name, ms in delays_ms.items()},
            folder=None,
        )


async def _run_until_script_ends(script: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Run both until the script ends or one of them fails."""
    running, watching = asyncio.create_task(script), asyncio.create_task(watch)
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, watching):
            task.cancel()
        ended = await asyncio.gather(running, watching, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def _completion(activity: ActivityInfo) -> Completion:
    try:
        reported = json.loads(activity.result)
    except ValueError:
        reported = {}  # not the result of a demo worker
    return Completion(
        activity=activity.id,
        worker=reported.get("worker", ""),
        attempt=reported.get("attempt", 0),
        digest=reported.get("digest", ""),
    )
