"""The demo as a whole: from an empty folder to the ledger, with nothing left behind."""

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
from liveness.demo.cast import Actor, Cast, Condition
from liveness.demo.desk import Desk
from liveness.demo.feeder import Feeder
from liveness.demo.ledger import Completion, Ledger, reckon
from liveness.demo.plan import DemoFailed, Plan
from liveness.demo.plot import Plot
from liveness.demo.record import Glance, Record
from liveness.demo.story import Line, Story
from liveness.demo.view import Scene, WorkerRow
from liveness.sdk import ActivityInfo, ActivityState
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE

TICK_MS = 100
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Somebody wants the demo to stop."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(by.name)
        self.by = by


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    ledger: Ledger
    seed: int
    seconds: float
    workers: int
    killed: int
    frozen: int
    moved: int
    """Attempts that were taken from a worker whose lease had ended."""
    lapse_seconds: Mapping[str, float]
    """How long after it was killed or frozen the lease of a worker ended."""
    folder: Path | None
    """Where everything is kept; None if it was not."""

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self.ledger),
            "clean": self.ledger.clean,
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
class Audience:
    """Who watches: `hear` is called with each line of the story, `see` several times a second."""

    hear: Callable[[Line], None]
    see: Callable[[Scene], None]


async def perform(
    plan: Plan, audience: Audience, environment: Mapping[str, str], clock: Clock, *, keep: bool
) -> Outcome:
    """Raises DemoFailed or Interrupted; in either case, and in every other, no process is left."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="liveness-demo-"))
    except OSError as error:
        raise DemoFailed(f"there is no place for a temporary folder: {error}") from error
    kept = keep
    interruptible = _Interruptible()
    try:
        with interruptible:
            cast = Cast(plan, folder, environment, clock)
            try:
                outcome = await _Show(plan, folder, cast, audience, clock).run()
            finally:
                await cast.end()
        kept = kept or not outcome.ledger.clean
    except asyncio.CancelledError:
        if interruptible.by is not None:
            raise Interrupted(interruptible.by) from None
        raise
    finally:
        if not kept:
            rmtree(folder, ignore_errors=True)
    return replace(outcome, folder=folder if kept else None)


class _Interruptible:
    """Turns signals into a cancellation of the task that entered this."""

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


class _Show:
    def __init__(self, plan: Plan, folder: Path, cast: Cast, audience: Audience, clock: Clock) -> None:
        self._plan = plan
        self._folder = folder
        self._cast = cast
        self._audience = audience
        self._clock = clock
        self._story = Story(cast, clock.monotonic_ms, audience.hear)
        self._desk = Desk(folder, cast, self._story.note)

    async def run(self) -> Outcome:
        self._story.add("a server is started")
        self._audience.see(self._scene(Glance()))
        await self._cast.start_server()
        self._story.add(f"the server listens on {self._cast.address}")
        record = Record(self._cast.address)
        try:
            async with asyncio.timeout(self._plan.limit_s):
                await _both(self._play(record), self._watch(record))
            self._tick(record)
            ledger = await self._reckon(record)
        except TimeoutError as error:
            raise DemoFailed(f"the work was not done within {self._plan.limit_s:.0f} s") from error
        finally:
            record.close()
        return self._outcome(ledger)

    async def _play(self, record: Record) -> None:
        plan, random = self._plan, Random(self._plan.seed)
        for _ in range(plan.workers):
            self._cast.start_worker()
        self._feeder = Feeder(plan, self._folder, record, self._clock, random)
        plot = Plot(plan, self._cast, record, self._desk, self._feeder, self._story, self._clock, random)
        while not all(actor.condition is Condition.RUNNING for actor in self._cast.workers.values()):
            await self._clock.sleep(TICK_MS)
        await self._feeder.begin()
        self._story.add(f"{plan.activities} files are to be hashed; the first are scheduled")
        trickle = asyncio.create_task(self._feeder.trickle())
        try:
            await plot.play()
            await trickle
        finally:
            trickle.cancel()
        await self._feeder.give_rest()
        while not self._is_done(record):
            await self._clock.sleep(TICK_MS)
        self._story.add("everything is completed; the workers may go")
        await self._cast.dismiss_workers()

    def _is_done(self, record: Record) -> bool:
        """Everything is completed, the log has told it all, every death is noticed, and every zombie answered."""
        actors = self._cast.workers.values()
        return (
            record.glance.count(ActivityState.COMPLETED) == self._plan.activities
            and len(record.completions) == self._plan.activities
            and all(actor.name in self._story.lapses_ms for actor in actors if actor.struck_ms)
            and not any(
                self._desk.in_hand(actor.name) for actor in actors if actor.condition is not Condition.KILLED
            )
        )

    async def _watch(self, record: Record) -> None:
        while True:
            await record.look()
            self._tick(record)
            await self._clock.sleep(TICK_MS)

    def _tick(self, record: Record) -> None:
        self._cast.check()
        for happening in record.news():
            self._story.hear(happening)
        self._desk.read_notes()
        for actor in self._cast.workers.values():
            if actor.condition is Condition.STARTING and actor.name in record.glance.workers:
                actor.condition = Condition.RUNNING
        self._audience.see(self._scene(record.glance))

    def _scene(self, glance: Glance) -> Scene:
        seconds = self._story.elapsed_ms // 1_000
        return Scene(
            title=f"leases of {self._plan.lease_s:g} s · {self._cast.address or 'no server yet'} · seed {self._plan.seed}",
            time=f"{seconds // 60}:{seconds % 60:02}",
            workers=[self._row(glance, actor) for actor in self._cast.workers.values()],
            completed=glance.count(ActivityState.COMPLETED),
            running=glance.count(ActivityState.STARTED),
            waiting=glance.count(ActivityState.AVAILABLE, ActivityState.WAITING),
            total=self._plan.activities,
            story=self._story.lines,
        )

    def _row(self, glance: Glance, actor: Actor) -> WorkerRow:
        worker = glance.workers.get(actor.name)
        active = worker is not None and worker.state == WORKER_STATE_ACTIVE
        left_ms = 0
        if worker is not None and active:
            left_ms = max(worker.lease_deadline.ToMilliseconds() - self._clock.wall_ms(), 0)
        return WorkerRow(
            name=actor.name,
            condition=actor.condition,
            verdict="" if worker is None else "ACTIVE" if active else "INACTIVE",
            suspect=worker is not None and worker.suspect,
            epoch=0 if worker is None else worker.lease_epoch,
            lease_left=left_ms / (self._plan.lease_s * 1_000),
            lease_left_s=left_ms / 1_000,
            holds=glance.held_by(actor.name),
        )

    async def _reckon(self, record: Record) -> Ledger:
        await record.look()
        done = [
            await record.in_full(activity)
            for activity in record.glance.activities
            if activity.state is ActivityState.COMPLETED
        ]
        completions = [_completion(activity) for activity in done]
        return reckon(self._feeder.names, completions, record.completions, self._desk.notes)

    def _outcome(self, ledger: Ledger) -> Outcome:
        actors = self._cast.workers.values()
        lapses = self._story.lapses_ms
        return Outcome(
            ledger=ledger,
            seed=self._plan.seed,
            seconds=round(self._story.elapsed_ms / 1_000, 1),
            workers=len(actors),
            killed=sum(actor.condition is Condition.KILLED for actor in actors),
            frozen=sum(actor.was_frozen for actor in actors),
            moved=self._story.moved,
            lapse_seconds={name: round(ms / 1_000, 2) for name, ms in lapses.items()},
            folder=None,
        )


async def _both(play: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Until the play is over, or the watching fails."""
    playing, watching = asyncio.create_task(play), asyncio.create_task(watch)
    try:
        await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (playing, watching):
            task.cancel()
        ended = await asyncio.gather(playing, watching, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def _completion(activity: ActivityInfo) -> Completion:
    try:
        told = json.loads(activity.result)
    except ValueError:
        told = {}  # not what a worker of ours reports
    return Completion(
        activity=activity.id,
        worker=told.get("worker", ""),
        attempt=told.get("attempt", 0),
        digest=told.get("digest", ""),
    )
