"""A whole world from one seed: nodes, database, network, workers, other clients, and a fault injector."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import structlog

from tests.simulation import labels
from tests.simulation.audit import Audit
from tests.simulation.database import SharedDatabase
from tests.simulation.fault_injector import FaultInjector
from tests.simulation.final_checks import FinalChecks
from tests.simulation.labels import worker_label
from tests.simulation.listening_time import ListeningTime
from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.monitor import Monitor
from tests.simulation.network import Delivered, Network
from tests.simulation.node_host import NodeHost
from tests.simulation.operator_client import Client
from tests.simulation.plan import Plan
from tests.simulation.reply_checks import ReplyChecks
from tests.simulation.sometimes import Sometimes
from tests.simulation.storm_checks import StormChecks
from tests.simulation.worker import Run, WorkerBehaviour

STORY_MAX = 20_000
COLLECTED_MAX = 4


class Step(NamedTuple):
    at_s: float
    text: str
    about: tuple[str, ...]
    alike: str = ""
    """The kind of similar steps that this one belongs to."""


@dataclass
class Outcome:
    seed: int
    plan: Plan
    trace: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    messages: int = 0
    transactions: int = 0
    rows: int = 0
    sometimes: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    acted: list[int] = field(default_factory=list)
    """Numbers of the faults that took place."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults of single messages and transactions."""
    answers: Counter[str] = field(default_factory=Counter)
    rule: str = ""
    """The broken rule."""
    violation: str = ""
    about: tuple[str, ...] = ()
    history: list[Step] = field(default_factory=list)


class RuleBroken(Exception):
    """A rule was broken; the world ends."""


class World:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.random = Random(seed)
        self.loop = SimulatedLoop(Random(f"timers {seed}"))
        self.outcome = Outcome(seed, plan)
        self.sometimes = Sometimes()
        self.listening_time = ListeningTime()
        self.network = Network(self.loop, Random(f"network {seed}"))
        self.database = SharedDatabase(self.loop, Random(f"database {seed}"))
        self.audit = Audit(self.report, self.note, self.sometimes, self.listening_time, self.now)
        self.answers = ReplyChecks(self.audit, self.report, self.note, self.sometimes)
        self.node_hosts = [NodeHost(self, number) for number in range(plan.nodes_max)]
        self.runs: dict[tuple[str, str], list[Run]] = {}
        self.contested = [f"contested-{number}" for number in range(5)]
        self.calm_since = 0.0
        """The time since which nothing is broken; infinite while something is."""
        self.fault_injector = FaultInjector(self)
        self.monitor = Monitor(self)
        self.storm_checks = StormChecks(self)
        self.client = Client(self)
        self._trace = hashlib.sha256()
        self._history: deque[Step] = deque(maxlen=STORY_MAX)
        self._wire_up()

    def _wire_up(self) -> None:
        network, database = self.network, self.database
        network.trace = self._on_message
        network.on_answer = self._on_answer
        network.on_failure = lambda path, error: self.report("no crash", f"{path} raised {error!r}", ())
        network.may_double = lambda source, path: "Heartbeat" in path or "Complete" in path
        database.on_commit = self._on_commit
        self.monitor.listen()
        self.storm_checks.listen()

    # -- shared by all parts

    def now(self) -> float:
        return self.loop.time()

    def process(self, name: str, host: str) -> Process:
        return Process(self.loop, name, host)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` in the world's own process, whichever process asks."""
        self.loop.call_later(seconds, action, context=self._context)

    def addresses(self) -> list[str]:
        return [node_host.address for node_host in self.node_hosts]

    def note(self, text: str, *about: str, alike: str = "") -> None:
        self._trace.update(f"{self.now():.6f} {text}\n".encode())
        self._history.append(Step(self.now(), text, about, alike))

    def report(self, invariant: str, text: str, about: tuple[str, ...]) -> None:
        """Record a broken rule, and end the world."""
        if not self.outcome.violation:
            self.outcome.rule, self.outcome.violation = invariant, f"{invariant}: {text}"
            self.outcome.about = self._all(about)
            self.note(f"BROKEN: {text}")
            self.loop.stop()

    def _all(self, about: tuple[str, ...]) -> tuple[str, ...]:
        """Add the shards of the workers among these labels."""
        workers = self.audit.workers.items()
        return (
            *about,
            *(labels.shard(worker.shard_id) for key, worker in workers if worker_label(key) in about),
        )

    # -- observed events

    def _on_message(self, what: str, source: str, target: str, path: str, detail: Any) -> None:
        self._trace.update(f"{self.now():.6f} {what} {source} {target} {path} ".encode())
        self._trace.update(detail if isinstance(detail, bytes) else str(detail).encode())
        if what == "arrives":
            self.answers.arrived(path, target, source, detail, self.now())
            if "Heartbeat" in path:
                self.monitor.heartbeat_arrived(source, target, path, detail)

    def _on_answer(self, given: Delivered) -> None:
        if not self.outcome.violation:
            self.answers.check(given)
            self.monitor.answered(given)

    def _on_commit(self, driver: Any, writer: str) -> None:
        if not self.outcome.violation:
            rows = self.audit.rows
            self.audit.after_commit(driver, writer)
            self._trace.update(f"{self.now():.6f} commit {writer} {self.audit.rows - rows}\n".encode())
            self.monitor.committed(driver, writer)

    def _on_log(self, _: Any, level: str, entry: MutableMapping[str, Any]) -> Any:
        process = current_process()
        host = "" if process is None else process.host
        about: tuple[str, ...] = (host,)
        text = " ".join(f"{name}={value}" for name, value in sorted(entry.items()) if name != "event")
        if "shard" in entry:
            about = (host, labels.shard(entry["shard"]))
        self._history.append(Step(self.now(), f"{host} says: {entry.get('event')} {text}", about))
        if entry.get("event") == "queue interrupted":
            self.sometimes("reschedule interrupted and retried")
        raise structlog.DropEvent

    # -- the run

    def run(self, seconds: float) -> Outcome:
        self.loop.until = self.now() + seconds
        structlog.configure(
            processors=[self._on_log],
            wrapper_class=structlog.make_filtering_bound_logger(20),
            logger_factory=structlog.ReturnLoggerFactory(),
        )
        try:
            self._run()
        finally:
            self._finish()
        return self.outcome

    def _run(self) -> None:
        loop, outcome = self.loop, self.outcome
        asyncio.set_event_loop(loop)
        asyncio._set_running_loop(None)
        self._context = Process(loop, "world", "world").context
        task = self._context.run(loop.create_task, self._live())
        task.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        if not outcome.violation and task.done():
            task.result()
        if not outcome.violation and loop.failures:
            self.report("no crash", loop.failures[0], ())

    async def _live(self) -> None:
        for node_host in self.node_hosts:
            self.listening_time.away(node_host.host, self.now())
            node_host.start()
        await self.client.configure()
        self.create_workers()
        self.client.start()
        ticking = self.loop.create_task(self.monitor.tick())
        await self.fault_injector.act()
        await FinalChecks(self).check()
        ticking.cancel()

    def create_workers(self) -> None:
        """Create the workers; every second key is used in each namespace."""
        plan = self.plan
        for number in range(plan.workers):
            namespace = f"ns{number % plan.namespaces}"
            works = self.random.random() < plan.workers_who_work
            behaviour = WorkerBehaviour(
                namespace=namespace,
                key=f"w{number // plan.namespaces}",
                task_queue=self.random.choice(("q0", "q1")),
                lease_ms=self.random.choice(plan.leases_ms),
                work_ms=self.random.choice((100, 1_000, 4_000)),
                polls=works and self.random.random() < 0.6,
                binds=works and self.random.random() < 0.6,
                claims=works and self.random.random() < 0.3,
                grace_ms=self.random.choice((0, *plan.disconnect_graces_ms * 2))
                if plan.disconnect_graces_ms
                else 0,
            )
            self.runs[namespace, behaviour.key] = []
            self.later(self.random.uniform(0, 3), lambda behaviour=behaviour: self.begin_run(behaviour))  # type: ignore[misc]

    def begin_run(self, behaviour: WorkerBehaviour) -> None:
        runs = self.runs[behaviour.namespace, behaviour.key]
        run = Run(self, behaviour, len(runs) + 1)
        runs.append(run)
        self.note(f"{run.session} starts", worker_label(run.key))
        run.start()

    def _finish(self) -> None:
        outcome, network = self.outcome, self.network
        outcome.trace = self._trace.hexdigest()
        outcome.steps = self.loop.steps
        outcome.virtual_s = self.now() - 1_000.0
        outcome.messages = network.messages
        outcome.transactions = self.database.transactions
        outcome.rows = self.audit.rows
        outcome.sometimes = self.sometimes.counts
        outcome.answers = self.answers.given
        outcome.faults = Counter(
            {
                "message lost": network.lost,
                "message delivered twice": network.doubled,
                "message late and overtaken": network.straggled,
            }
        )
        for fault, times in self.database.transaction_faults.items():
            outcome.faults[f"transaction: {fault.value}"] += times
        outcome.history = list(self._history) if outcome.violation else []
        self.loop.discard_tasks()
        asyncio.set_event_loop(None)


def live(seed: int, plan: Plan, seconds: float = float("inf")) -> Outcome:
    """Run one world to its end, or for at most `seconds`, and discard all that is left of it."""
    with _exclusive_logging():
        return World(seed, plan).run(seconds)


@contextmanager
def _exclusive_logging() -> Iterator[None]:
    """While a world runs, its logs become its history; garbage collection is off, because collected tasks may run code."""
    configured = structlog.get_config()
    threshold, hook = gc.get_threshold(), sys.unraisablehook
    gc.set_threshold(0)
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        structlog.configure(**configured)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coroutines that were created and never ran
            for _ in range(COLLECTED_MAX):  # a collected object may keep others alive until the next round
                if not gc.collect():
                    break
        gc.set_threshold(*threshold)
        sys.unraisablehook = hook
