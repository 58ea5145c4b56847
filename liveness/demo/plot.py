"""Who is killed and frozen, and when: each step waits for what the step before brought about.

A kills   one worker; another one is started in its place.
B freezes a worker that is in the middle of something, until its lease has ended and its work has moved.
C kills   a second worker, and while the server is still waiting for it, continues the frozen one: a zombie.
D kills   one more, in the long version.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from liveness.clock import Clock
from liveness.demo.cast import Actor, Cast, Condition
from liveness.demo.desk import Desk
from liveness.demo.feeder import Feeder
from liveness.demo.plan import Plan
from liveness.demo.record import Record
from liveness.demo.story import Story, Tone, names
from liveness.v1.worker_pb2 import WORKER_STATE_INACTIVE

LOOK_MS = 25
REPLACEMENT_MS = 1_000
ZOMBIE_MS = 700


class Plot:
    def __init__(
        self,
        plan: Plan,
        cast: Cast,
        record: Record,
        desk: Desk,
        feeder: Feeder,
        story: Story,
        clock: Clock,
        random: Random,
    ) -> None:
        self._plan = plan
        self._cast = cast
        self._record = record
        self._desk = desk
        self._feeder = feeder
        self._story = story
        self._clock = clock
        self._random = random

    async def play(self) -> None:
        await self._clock.sleep(self._plan.scenes_ms)
        await self._kill_one()

        await self._clock.sleep(self._plan.scenes_ms)
        zombie = await self._freeze_one()
        await self._until(lambda: self._has_lapsed(zombie))

        await self._clock.sleep(self._plan.scenes_ms // 2)
        await self._kill_one(replacement=False)
        await self._clock.sleep(min(ZOMBIE_MS, self._plan.grace_s * 500))
        self._cast.thaw(zombie)
        self._story.add(f"{zombie.name} was continued (SIGCONT): a zombie", Tone.BLOW)
        self._replace()

        if self._plan.encore:
            await self._clock.sleep(2 * self._plan.scenes_ms)
            await self._kill_one()

    async def _kill_one(self, *, replacement: bool = True) -> None:
        await self._feeder.give_portion()
        victim = await self._somebody_busy()
        self._cast.kill(victim)
        self._story.add(f"{victim.name} was killed (kill -9){self._in_hand(victim)}", Tone.BLOW)
        if replacement:
            await self._clock.sleep(min(REPLACEMENT_MS, self._plan.scenes_ms))
            self._replace()

    def _replace(self) -> None:
        self._story.add(f"{self._cast.start_worker().name} is started")

    async def _freeze_one(self) -> Actor:
        await self._feeder.give_portion()
        while True:
            victim = await self._somebody_busy()
            self._cast.freeze(victim)
            self._desk.read_notes()
            if self._desk.in_hand(victim.name):
                break
            self._cast.spare(victim)  # it had just finished: that makes no zombie
            await self._clock.sleep(LOOK_MS)
        self._story.add(f"{victim.name} was frozen (SIGSTOP){self._in_hand(victim)}", Tone.BLOW)
        return victim

    async def _somebody_busy(self) -> Actor:
        """One of those that hold the most, by their own account."""
        while True:
            self._desk.read_notes()
            running = [actor for actor in self._cast.workers.values() if actor.condition is Condition.RUNNING]
            most = max((len(self._desk.in_hand(actor.name)) for actor in running), default=0)
            if most:
                return self._random.choice(
                    [actor for actor in running if len(self._desk.in_hand(actor.name)) == most]
                )
            await self._clock.sleep(LOOK_MS)

    def _in_hand(self, actor: Actor) -> str:
        held = self._desk.in_hand(actor.name)
        return f" at {names(held)}" if held else ""

    def _has_lapsed(self, actor: Actor) -> bool:
        worker = self._record.glance.workers.get(actor.name)
        return worker is not None and worker.state == WORKER_STATE_INACTIVE

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self._clock.sleep(LOOK_MS)
