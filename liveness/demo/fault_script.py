"""Choose which workers to kill and freeze, and when. Each step waits for the effect of the step before.

A kills a worker and starts another one in its place.
B freezes a worker in the middle of an activity, until its lease has ended and its work has moved.
C kills a second worker and, while the server still waits for that one, continues the frozen worker: a zombie.
D kills one more worker, in the full version.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from liveness.clock import Clock
from liveness.demo.note_collector import NoteCollector
from liveness.demo.plan import Plan
from liveness.demo.processes import ChildProcess, DemoProcesses, ProcessState
from liveness.demo.server_client import ServerClient
from liveness.demo.timeline import EntryKind, Timeline, join_names
from liveness.demo.workload import Workload
from liveness.v1.worker_pb2 import WORKER_STATE_INACTIVE

POLL_MS = 25
REPLACEMENT_MS = 1_000
ZOMBIE_MS = 700


class FaultScript:
    def __init__(
        self,
        plan: Plan,
        processes: DemoProcesses,
        server_client: ServerClient,
        note_collector: NoteCollector,
        workload: Workload,
        timeline: Timeline,
        clock: Clock,
        random: Random,
    ) -> None:
        self._plan = plan
        self._processes = processes
        self._server_client = server_client
        self._note_collector = note_collector
        self._workload = workload
        self._timeline = timeline
        self._clock = clock
        self._random = random

    async def run(self) -> None:
        await self._clock.sleep(self._plan.fault_gap_ms)
        await self._kill_one()

        await self._clock.sleep(self._plan.fault_gap_ms)
        zombie = await self._freeze_one()
        await self._wait_until(lambda: self._has_lapsed(zombie))

        await self._clock.sleep(self._plan.fault_gap_ms // 2)
        await self._kill_one(replacement=False)
        await self._clock.sleep(min(ZOMBIE_MS, self._plan.grace_s * 500))
        self._processes.resume(zombie)
        self._timeline.add(f"{zombie.name} was continued (SIGCONT): a zombie", EntryKind.FAULT)
        self._start_replacement()

        if self._plan.extra_kill:
            await self._clock.sleep(2 * self._plan.fault_gap_ms)
            await self._kill_one()

    async def _kill_one(self, *, replacement: bool = True) -> None:
        await self._workload.schedule_batch()
        victim = await self._wait_for_busy_worker()
        self._processes.kill(victim)
        self._timeline.add(f"{victim.name} was killed (kill -9){self._in_progress(victim)}", EntryKind.FAULT)
        if replacement:
            await self._clock.sleep(min(REPLACEMENT_MS, self._plan.fault_gap_ms))
            self._start_replacement()

    def _start_replacement(self) -> None:
        self._timeline.add(f"{self._processes.start_worker().name} is started")

    async def _freeze_one(self) -> ChildProcess:
        await self._workload.schedule_batch()
        while True:
            victim = await self._wait_for_busy_worker()
            self._processes.freeze(victim)
            self._note_collector.read_notes()
            if self._note_collector.in_progress(victim.name):
                break
            self._processes.undo_freeze(victim)  # it had just finished, so it would not become a zombie
            await self._clock.sleep(POLL_MS)
        self._timeline.add(f"{victim.name} was frozen (SIGSTOP){self._in_progress(victim)}", EntryKind.FAULT)
        return victim

    async def _wait_for_busy_worker(self) -> ChildProcess:
        """One of the workers with the most activities in progress, by their own notes."""
        while True:
            self._note_collector.read_notes()
            running = [
                child
                for child in self._processes.workers.values()
                if child.process_state is ProcessState.RUNNING
            ]
            most = max((len(self._note_collector.in_progress(child.name)) for child in running), default=0)
            if most:
                return self._random.choice(
                    [child for child in running if len(self._note_collector.in_progress(child.name)) == most]
                )
            await self._clock.sleep(POLL_MS)

    def _in_progress(self, child: ChildProcess) -> str:
        held = self._note_collector.in_progress(child.name)
        return f" at {join_names(held)}" if held else ""

    def _has_lapsed(self, child: ChildProcess) -> bool:
        worker = self._server_client.snapshot.workers.get(child.name)
        return worker is not None and worker.state == WORKER_STATE_INACTIVE

    async def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            await self._clock.sleep(POLL_MS)
