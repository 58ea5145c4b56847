"""A simulated worker: the SDK's own pulse and fence, in a process that can stop, die, come back and be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from liveness.sdk import fence, refusals
from liveness.sdk.fence import Fence
from liveness.sdk.pulse import Heard, Pulse
from liveness.sdk.refusals import Refusal
from liveness.sdk.values import ActivityRef, AttemptKey, duration_of_ms, id_message, ref_of_task
from liveness.v1 import activity_pb2, service_pb2, worker_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.simulation.clocks import SimulatedClock
from tests.simulation.subjects import who

if TYPE_CHECKING:
    from tests.simulation.world import World

POLL_WAIT_MS = 2_000
CALL_S = 3.0


@dataclass(frozen=True)
class Manner:
    """How a worker behaves."""

    namespace: str
    key: str
    task_queue: str
    lease_ms: int
    work_ms: int
    """How long one piece of work takes, on average."""
    polls: bool
    binds: bool
    claims: bool


class Hold:
    def __init__(self, ref: ActivityRef, epoch: int) -> None:
        self.ref = ref
        self.epoch = epoch
        self.lost = asyncio.Event()


class Run:
    """One run of the worker's program: a process with a session."""

    def __init__(self, world: World, manner: Manner, number: int) -> None:
        self.world = world
        self.manner = manner
        self.number = number
        self.session = f"{manner.namespace}/{manner.key}#{number}"
        self.key = (manner.namespace, manner.key)
        self.host = f"{manner.namespace}-{manner.key}"
        self.process = world.process(f"{self.host}#{number}", self.host)
        random = self.random = Random(world.random.random())
        self.clock = SimulatedClock(world.loop, 1 + random.uniform(-0.001, 0.001), random.randrange(10**6))
        self.fence = Fence()
        self.ended = ""
        """Why, if it has by itself."""
        self.holds: dict[AttemptKey, Hold] = {}
        self.leaving = False
        self._answered: dict[AttemptKey, asyncio.Future[bool]] = {}
        self._bound = 0
        world.audit.sessions[self.session] = self.key

    def start(self) -> None:
        self.process.spawn(self._main())

    @property
    def trusts_its_lease(self) -> bool:
        """What its own clock and fence say."""
        return fence.is_open(self.fence, self.clock.monotonic_ms())

    # -- the program

    async def _main(self) -> None:
        manner = self.manner
        profile = worker_pb2.WorkerHeartbeat(
            worker_instance_key=manner.key,
            session_id=self.session,
            task_queue=manner.task_queue,
            lease_duration=duration_of_ms(manner.lease_ms),
        )
        self._stir = asyncio.Event()
        self._renewed = asyncio.Event()
        self.pulse = Pulse(profile, self.clock.monotonic_ms())
        self._addresses = self.world.addresses()
        self.random.shuffle(self._addresses)
        self._connect()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat()), loop.create_task(self._watch_fence())]
        if manner.polls:
            self._tasks.append(loop.create_task(self._poll()))
        if manner.binds or manner.claims:
            self._tasks.append(loop.create_task(self._take_work()))

    def _connect(self) -> None:
        channel: Any = self.world.network.connect(self._addresses[0])
        self.liveness: Any = LivenessServiceStub(channel)
        self.activities: Any = ActivityServiceStub(channel)

    def _move(self, refusal: Refusal) -> None:
        """To the next node."""
        if refusal.elsewhere and len(self._addresses) > 1:
            self._addresses.append(self._addresses.pop(0))
            self._connect()

    async def _beat(self) -> None:
        pulse, clock = self.pulse, self.clock
        while not self.ended:
            wait_ms = (pulse.due_ms or 0) - clock.monotonic_ms()
            if wait_ms > 0:
                self._stir.clear()
                try:
                    async with asyncio.timeout(wait_ms / 1_000):
                        await self._stir.wait()
                except TimeoutError:
                    pass
                continue
            message = pulse.send(clock.monotonic_ms())
            self._declare(message)
            self.world.note(
                f"{self.session} sends heartbeat {message.sequence} to {self._addresses[0].partition(':')[0]}",
                who(self.key),
                alike=f"heartbeats of {who(self.key)}",
            )
            request = service_pb2.RecordWorkerHeartbeatsRequest(
                namespace=self.manner.namespace, heartbeats=[message]
            )
            try:
                response = await self.liveness.RecordWorkerHeartbeats(
                    request, timeout=pulse.deadline_ms / 1_000
                )
            except grpc.aio.AioRpcError as error:
                refusal = refusals.of_call(error)  # type: ignore[arg-type]
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.world.sometimes("answer came after its deadline")
                self._move(refusal)
                heard = pulse.refused(refusal, clock.monotonic_ms(), self.random.random())
            else:
                [item] = response.items
                if item.HasField("status"):
                    heard = pulse.refused(
                        refusals.of_status(item.status), clock.monotonic_ms(), self.random.random()
                    )
                else:
                    heard = pulse.answered(item.result, clock.monotonic_ms())
            self._hear(heard)

    def _declare(self, message: worker_pb2.WorkerHeartbeat) -> None:
        named = {
            ((ref.workflow_id, ref.run_id, ref.activity_id), ref.attempt) for ref in message.bound_activities
        }
        self.world.audit.declared[self.key, self.session, message.sequence] = frozenset(named)

    def _hear(self, heard: Heard) -> None:
        for loss in heard.lost:
            self._lose(loss.ref)
        for not_bound in heard.not_bound:
            self._settle(not_bound.ref.key, False)
        if heard.fatal is not None:
            self.ended = heard.fatal.reason
            self.fence = Fence()
            for hold in list(self.holds.values()):
                hold.lost.set()
            return
        if heard.ended:
            self.fence = fence.ended(self.fence)
        if heard.lease_ms:
            self.fence = fence.renewed(self.fence, heard.sent_ms, heard.lease_ms)
            self._renewed.set()
        for ref in heard.held:
            self._settle(ref.key, True)

    def _settle(self, key: AttemptKey, bound: bool) -> None:
        outcome = self._answered.pop(key, None)
        if outcome is not None and not outcome.done():
            outcome.set_result(bound)

    def _lose(self, ref: ActivityRef) -> None:
        hold = self.holds.get(ref.key)
        if hold is not None:
            hold.lost.set()
        else:
            self.pulse.unbind(ref, self.clock.monotonic_ms())
        self._settle(ref.key, False)

    async def _watch_fence(self) -> None:
        """What the SDK's sentry does: whoever cannot be sure of the lease stops."""
        while True:
            now_ms = self.clock.monotonic_ms()
            left_ms = fence.deadline_ms(self.fence) - now_ms
            if left_ms > 0:
                await self.clock.sleep(left_ms)
                continue
            if self.pulse.held:
                worker = self.world.audit.workers.get(self.key)
                if worker is not None and worker.state == "ACTIVE" and worker.session == self.session:
                    self.world.sometimes("worker fenced itself off before the server did")
                for loss in self.pulse.lose_all("fenced"):
                    self._lose(loss.ref)
            self._renewed.clear()
            await self._renewed.wait()

    # -- work

    async def _poll(self) -> None:
        while not self.ended and not self.leaving:
            request = activity_pb2.PollActivityRequest(
                namespace=self.manner.namespace,
                worker_instance_key=self.manner.key,
                session_id=self.session,
                wait=duration_of_ms(POLL_WAIT_MS),
                max_activities=2,
            )
            try:
                response = await self.activities.PollActivity(request, timeout=POLL_WAIT_MS / 1_000 + 1)
            except grpc.aio.AioRpcError:
                await self.clock.sleep(self.random.randrange(100, 1_000))
                continue
            for task in response.activities:
                self._adopt(task)
            if len(self.holds) > 5:
                await self.clock.sleep(self.manner.work_ms)

    def _adopt(self, task: activity_pb2.ActivityTask) -> None:
        ref = ref_of_task(task)
        if ref.key in self.holds:
            return
        welcome, losses = self.pulse.adopt(ref, task.lease_epoch, self.clock.monotonic_ms())
        for loss in losses:
            self._lose(loss.ref)
        if welcome and not self.trusts_its_lease:
            self.pulse.unbind(ref, self.clock.monotonic_ms())
            welcome = False
        self._stir.set()
        if welcome:
            hold = self.holds[ref.key] = Hold(ref, task.lease_epoch)
            asyncio.get_running_loop().create_task(self._work(hold, ours=True))

    async def _take_work(self) -> None:
        """Take up what the program finds by itself."""
        while not self.ended and not self.leaving:
            await self.clock.sleep(self.manner.work_ms * self.random.uniform(0.5, 1.5))
            if len(self.holds) > 5:
                continue
            if self.manner.claims and self.random.random() < 0.5:
                await self._claim(self.random.choice(self.world.contested))
            elif self.manner.binds:
                await self._bind()

    async def _bind(self) -> None:
        self._bound += 1
        ref = ActivityRef(f"{self.session}-{self._bound}", task_queue=self.manner.task_queue)
        outcome = self._answered[ref.key] = asyncio.get_running_loop().create_future()
        hold = self.holds[ref.key] = Hold(ref, 0)
        self.pulse.bind(ref, self.clock.monotonic_ms())
        self._stir.set()
        if await outcome and not hold.lost.is_set():
            hold.epoch = self.pulse.epoch
            asyncio.get_running_loop().create_task(self._work(hold, ours=False))
        else:
            self._end(hold)

    async def _claim(self, workflow_id: str) -> None:
        request = activity_pb2.ClaimActivityRequest(
            namespace=self.manner.namespace,
            id=activity_pb2.ActivityId(workflow_id=workflow_id, run_id="-", activity_id="-"),
            worker_instance_key=self.manner.key,
            session_id=self.session,
        )
        try:
            response = await self.activities.ClaimActivity(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            return
        self._adopt(response.activity)

    async def _work(self, hold: Hold, *, ours: bool) -> None:
        try:
            async with asyncio.timeout(self.manner.work_ms * self.random.uniform(0.2, 2) / 1_000):
                await hold.lost.wait()
        except TimeoutError:
            pass
        if hold.lost.is_set():
            await self.clock.sleep(self.random.choice((0, 50, 500)))
            self._end(hold)
        elif ours:
            await self._complete(hold)
        else:
            self._end(hold)

    async def _complete(self, hold: Hold) -> None:
        request = activity_pb2.CompleteActivityRequest(
            namespace=self.manner.namespace,
            id=id_message(hold.ref),
            worker_instance_key=self.manner.key,
            lease_epoch=hold.epoch,
            attempt=hold.ref.attempt,
        )
        self.pulse.ending(hold.ref)
        for _ in range(20):
            try:
                await self.activities.CompleteActivity(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                refusal = refusals.of_call(error)  # type: ignore[arg-type]
                if not refusal.passing:
                    self._end(hold)
                    return
                await self.clock.sleep(self.random.randrange(50, 500))
            else:
                self.holds.pop(hold.ref.key, None)
                self.pulse.forget(hold.ref, self.clock.monotonic_ms())
                self._stir.set()
                return
        self._end(hold)

    def _end(self, hold: Hold) -> None:
        self.holds.pop(hold.ref.key, None)
        self.pulse.unbind(hold.ref, self.clock.monotonic_ms())
        self._stir.set()

    # -- the end

    def say_goodbye(self, done: Callable[[], None]) -> None:
        self.process.spawn(self._say_goodbye(done))

    async def _say_goodbye(self, done: Callable[[], None]) -> None:
        self.leaving = True
        request = service_pb2.ShutdownWorkerRequest(
            namespace=self.manner.namespace, worker_instance_key=self.manner.key, session_id=self.session
        )
        try:
            await self.liveness.ShutdownWorker(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            pass
        done()
