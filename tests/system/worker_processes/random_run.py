"""A random run: workers are killed, stopped, cut off and replaced while they work; then the faults end, and all is
audited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from random import Random
from signal import SIGKILL, SIGTERM

from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.activity_totals import ActivityTotals, check_totals
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.own_server import restart
from tests.system.worker_processes.tcp_proxy import ForwardMode, Proxy
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import (
    LOOK_SECONDS,
    SECONDS_MAX,
    WorkerGroup,
    WorkerProcess,
)

LEASE = 1.2
GRACE = 0.8
FREEZE_SECONDS = (0.2, 2.5)
"""Some are shorter than a lease, some longer."""
GAP_SECONDS = (0.0, 0.3)
WORK_MS = (50, 300)
SLOTS = 3
ENDS = (Action.FINISHED, Action.STOPPED, Action.HANDED_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    workers: int
    activities: int
    faults: int
    server_kills: bool = False


class RandomRun:
    def __init__(
        self,
        plan: Plan,
        server: ServerProcess,
        worker_group: WorkerGroup,
        namespace_client: NamespaceClient,
        proxy: Proxy,
    ) -> None:
        self._plan = plan
        self._server = server
        self._worker_group = worker_group
        self._namespace_client = namespace_client
        self._proxy = proxy
        self._random = Random(plan.seed)
        self._joined = 0
        self._frozen: dict[WorkerProcess, asyncio.TimerHandle] = {}
        self._network: asyncio.TimerHandle | None = None
        self.faults: Counter[str] = Counter()
        types = Random(plan.seed)
        self.jobs = {name: types.choice(["quick", "stubborn"]) for name in names("job", plan.activities)}
        self._to_do = iter(self.jobs.items())

    async def run(self) -> ActivityTotals:
        """Let the workers finish some activities, then inject a fault into a busy one, again and again."""
        await self._namespace_client.configure(dispatch_timeout={"seconds": 1})
        await asyncio.gather(*(self._join() for _ in range(self._plan.workers)))
        await asyncio.gather(*(worker.wait_for_note(Action.RUNNING) for worker in self._worker_group.members))
        portion = self._plan.activities // (self._plan.faults + 1)
        for _ in range(self._plan.faults):
            await self._feed(portion)
            await asyncio.sleep(self._random.uniform(*GAP_SECONDS))
            await self._inject_fault()
        await self._feed(self._plan.activities)
        self._wait_until_done()
        return await check_totals(
            self._worker_group, self._namespace_client, self.jobs, server_died=self._plan.server_kills
        )

    async def _feed(self, how_many: int) -> None:
        for name, activity_type in islice(self._to_do, how_many):
            work_ms = self._random.randint(*WORK_MS)
            await self._namespace_client.schedule(name, activity_type, deaths_max=0, ms=work_ms)

    # -- faults

    async def _inject_fault(self) -> None:
        faults: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "killed": (8, self._kill),
            "frozen": (8, self._freeze),
            "terminated": (2, self._terminate),
            "cut": (2, self._cut),
            "silenced": (2, self._silence),
            "server killed": (2 if self._plan.server_kills else 0, self._kill_server),
        }
        [name] = self._random.choices(list(faults), [weight for weight, _ in faults.values()])
        self.faults[name] += 1
        await faults[name][1]()

    async def _kill(self) -> None:
        """Kill a worker and start another, or the same key again, which must not inherit its activities."""
        victim = await self._pick()
        await victim.kill()
        await self._join(victim.options.key if self._random.random() < 0.3 else "")

    async def _freeze(self) -> None:
        victim = await self._pick()
        victim.freeze()
        seconds = self._random.uniform(*FREEZE_SECONDS)
        self._frozen[victim] = asyncio.get_running_loop().call_later(seconds, self._thaw, victim)

    async def _terminate(self) -> None:
        victim = await self._pick()
        victim.send(SIGTERM)
        await self._join()

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _silence(self) -> None:
        if self._network is None:
            self._proxy.black_hole(self._random.choice([ForwardMode.DROP, ForwardMode.HOLD]))
            seconds = self._random.uniform(*FREEZE_SECONDS)
            self._network = asyncio.get_running_loop().call_later(seconds, self._heal)

    async def _kill_server(self) -> None:
        await restart(self._server, SIGKILL)

    # -- repairs

    def _heal(self) -> None:
        if self._network is not None:
            self._network.cancel()
            self._network = None
        self._proxy.heal()

    def _thaw(self, worker: WorkerProcess) -> None:
        self._frozen.pop(worker).cancel()
        worker.thaw()

    def _wait_until_done(self) -> None:
        self._heal()
        for worker in list(self._frozen):
            self._thaw(worker)

    async def _join(self, key: str = "") -> None:
        """Start a worker; every other one connects through the proxy."""
        self._joined += 1
        await self._worker_group.join(
            f"worker-{self._joined}",
            key=key,
            lease=LEASE,
            grace=self._random.choice([GRACE, GRACE, None]),
            address=self._proxy.address if self._joined % 2 else "",
            slots=SLOTS,
            stop_timeout=1.0,
            wait=False,
        )

    async def _pick(self) -> WorkerProcess:
        """Return a busy worker if there is one: a fault of an idle worker proves little."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                running = [
                    worker
                    for worker in self._worker_group.members
                    if worker.alive and worker not in self._frozen and worker.noted(Action.RUNNING)
                ]
                busy = [worker for worker in running if _is_at_work(worker)]
                if busy or (running and len(self._namespace_client.scheduled) == self._plan.activities):
                    return self._random.choice(busy or running)
                await self._feed(1)
                await asyncio.sleep(LOOK_SECONDS)


def _is_at_work(worker: WorkerProcess) -> bool:
    ended = {(note.activity, note.attempt) for note in worker.notes if note.action in ENDS}
    return any((note.activity, note.attempt) not in ended for note in worker.noted(Action.STARTED))
