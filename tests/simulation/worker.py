"""A simulated worker: the SDK's heartbeat state and local lease, in a process that can stop, die, return and lose its
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from liveness.sdk import local_lease, rpc_failures
from liveness.sdk.heartbeat_state import HeartbeatOutcome, HeartbeatState
from liveness.sdk.local_lease import LocalLease
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.values import (
    ActivityRef,
    AttemptKey,
    duration_to_ms,
    id_to_proto,
    ms_to_duration,
    ref_from_task,
)
from liveness.v1 import activity_pb2, service_pb2, worker_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.simulation.clocks import SimulatedClock
from tests.simulation.labels import worker_label
from tests.simulation.worker_stream import WorkerStream

if TYPE_CHECKING:
    from tests.simulation.world import World

POLL_WAIT_MS = 2_000
CALL_S = 3.0


@dataclass(frozen=True)
class WorkerBehaviour:
    """The behaviour of one worker."""

    namespace: str
    key: str
    task_queue: str
    lease_ms: int
    work_ms: int
    """The mean duration of one activity."""
    polls: bool
    binds: bool
    claims: bool
    grace_ms: int = 0
    """The disconnect grace that it asks for; 0 if it keeps no stream open."""


class Hold:
    def __init__(self, ref: ActivityRef, epoch: int) -> None:
        self.ref = ref
        self.epoch = epoch
        self.lost = asyncio.Event()
        self.heartbeat_ms = 0
        """How often the server expects a heartbeat of the attempt; 0 for never."""
        self.is_stuck = False
        """Whether its handler never ends by itself, and says nothing."""


class Run:
    """One run of the worker's program: a process with a session."""

    def __init__(self, world: World, behaviour: WorkerBehaviour, number: int) -> None:
        self.world = world
        self.behaviour = behaviour
        self.number = number
        self.session = f"{behaviour.namespace}/{behaviour.key}#{number}"
        self.key = (behaviour.namespace, behaviour.key)
        self.host = f"{behaviour.namespace}-{behaviour.key}"
        self.process = world.process(f"{self.host}#{number}", self.host)
        random = self.random = Random(world.random.random())
        self.clock = SimulatedClock(world.loop, 1 + random.uniform(-0.001, 0.001), random.randrange(10**6))
        self.local_lease = LocalLease()
        self.stream = WorkerStream(self, behaviour.grace_ms) if behaviour.grace_ms else None
        self.ended = ""
        """Why the run ended by itself, if it did."""
        self.holds: dict[AttemptKey, Hold] = {}
        self.leaving = False
        self.last_refusal = ""
        """The reason for which its last heartbeat was refused; empty if it was applied."""
        self._answered: dict[AttemptKey, asyncio.Future[bool]] = {}
        self._bound = 0
        world.audit.sessions[self.session] = self.key

    def start(self) -> None:
        self.process.spawn(self._main())

    @property
    def trusts_its_lease(self) -> bool:
        """Return whether the worker's own clock and local lease still allow it to work."""
        return local_lease.is_valid(self.local_lease, self.clock.monotonic_ms())

    # -- the program

    async def _main(self) -> None:
        behaviour = self.behaviour
        profile = worker_pb2.WorkerHeartbeat(
            worker_instance_key=behaviour.key,
            session_id=self.session,
            task_queue=behaviour.task_queue,
            lease_duration=ms_to_duration(behaviour.lease_ms),
            # The SDK says so if the program gives it the key; other clients may not.
            new_incarnation=self.number % 3 != 0,
        )
        self._stir = asyncio.Event()
        self._lease_changed = asyncio.Event()
        self.heartbeat_state = HeartbeatState(profile, self.clock.monotonic_ms())
        self._addresses = self.world.addresses()
        self.random.shuffle(self._addresses)
        self._connect()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat()), loop.create_task(self._watch_fence())]
        if self.stream is not None:
            self._tasks.append(loop.create_task(self.stream.keep_open()))
        if behaviour.polls:
            self._tasks.append(loop.create_task(self._poll()))
        if behaviour.binds or behaviour.claims:
            self._tasks.append(loop.create_task(self._take_work()))

    @property
    def address(self) -> str:
        """The node that it calls."""
        return self._addresses[0]

    def _connect(self) -> None:
        channel: Any = self.world.network.connect(self.address)
        self.liveness: Any = LivenessServiceStub(channel)
        self.activities: Any = ActivityServiceStub(channel)

    def fail_over(self, rpc_failure: RpcFailure) -> None:
        """Fail over to the next node."""
        if rpc_failure.should_fail_over and len(self._addresses) > 1:
            self._addresses.append(self._addresses.pop(0))
            self._connect()

    async def _beat(self) -> None:
        heartbeat_state, clock = self.heartbeat_state, self.clock
        while not self.ended:
            wait_ms = (heartbeat_state.due_ms or 0) - clock.monotonic_ms()
            if wait_ms > 0:
                self._stir.clear()
                try:
                    async with asyncio.timeout(wait_ms / 1_000):
                        await self._stir.wait()
                except TimeoutError:
                    pass
                continue
            message = heartbeat_state.send(clock.monotonic_ms())
            self._declare(message)
            self.world.note(
                f"{self.session} sends heartbeat {message.sequence} to {self._addresses[0].partition(':')[0]}",
                worker_label(self.key),
                alike=f"heartbeats of {worker_label(self.key)}",
            )
            request = service_pb2.RecordWorkerHeartbeatsRequest(
                namespace=self.behaviour.namespace, heartbeats=[message]
            )
            try:
                response = await self.liveness.RecordWorkerHeartbeats(
                    request, timeout=heartbeat_state.call_timeout_ms / 1_000
                )
            except grpc.aio.AioRpcError as error:
                rpc_failure = rpc_failures.failure_of_call(error)  # type: ignore[arg-type]
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.world.sometimes("answer came after its deadline")
                self.fail_over(rpc_failure)
                heartbeat_outcome = heartbeat_state.handle_failure(
                    rpc_failure, clock.monotonic_ms(), self.random.random()
                )
            else:
                [item] = response.items
                if item.HasField("status"):
                    rpc_failure = rpc_failures.failure_of_status(item.status)
                    self.last_refusal = rpc_failure.reason
                    heartbeat_outcome = heartbeat_state.handle_failure(
                        rpc_failure, clock.monotonic_ms(), self.random.random()
                    )
                else:
                    self.last_refusal = ""
                    heartbeat_outcome = heartbeat_state.handle_reply(item.result, clock.monotonic_ms())
            self._hear(heartbeat_outcome)

    def _declare(self, message: worker_pb2.WorkerHeartbeat) -> None:
        named = {
            ((ref.workflow_id, ref.run_id, ref.activity_id), ref.attempt) for ref in message.bound_activities
        }
        self.world.audit.declared[self.key, self.session, message.sequence] = frozenset(named)

    def _hear(self, heartbeat_outcome: HeartbeatOutcome) -> None:
        for loss in heartbeat_outcome.lost:
            self.lose(loss.ref)
        for rejected_binds in heartbeat_outcome.rejected_binds:
            self._settle(rejected_binds.ref.key, False)
        if heartbeat_outcome.fatal is not None:
            self.ended = heartbeat_outcome.fatal.reason
            self.set_lease(LocalLease())
            for hold in list(self.holds.values()):
                hold.lost.set()
            return
        if heartbeat_outcome.lease_ended:
            self.set_lease(local_lease.lease_ended(self.local_lease))
        if heartbeat_outcome.lease_ms:
            self.set_lease(
                local_lease.renewed(self.local_lease, heartbeat_outcome.sent_ms, heartbeat_outcome.lease_ms)
            )
            if self.stream is not None and self.trusts_its_lease:
                self.stream.lease_confirmed()
        for ref in heartbeat_outcome.held:
            self._settle(ref.key, True)

    def set_lease(self, updated: LocalLease) -> None:
        self.local_lease = updated
        self._lease_changed.set()

    def send_within(self, wait_ms: int) -> None:
        """Send the next heartbeat after this time at the latest."""
        self.heartbeat_state.send_by(self.clock.monotonic_ms() + wait_ms)
        self._stir.set()

    def _settle(self, key: AttemptKey, bound: bool) -> None:
        outcome = self._answered.pop(key, None)
        if outcome is not None and not outcome.done():
            outcome.set_result(bound)

    def lose(self, ref: ActivityRef) -> None:
        hold = self.holds.get(ref.key)
        if hold is not None:
            hold.lost.set()
        else:
            self.heartbeat_state.unbind(ref, self.clock.monotonic_ms())
        self._settle(ref.key, False)

    async def _watch_fence(self) -> None:
        """Do what the SDK's lease watchdog does: stop working when the lease is not certain any more."""
        while True:
            self._lease_changed.clear()
            now_ms = self.clock.monotonic_ms()
            left_ms = local_lease.deadline_ms(self.local_lease) - now_ms
            if left_ms > 0:
                await self._sleep_while_unchanged(left_ms)
                continue
            if self.heartbeat_state.held:
                if self.stream is not None:
                    self.stream.check_fence(-left_ms)
                worker = self.world.audit.workers.get(self.key)
                if worker is not None and worker.state == "ACTIVE" and worker.session == self.session:
                    self.world.sometimes("worker fenced itself before the server expired it")
                for loss in self.heartbeat_state.lose_all("fenced"):
                    self.lose(loss.ref)
            await self._lease_changed.wait()

    async def _sleep_while_unchanged(self, ms: int) -> None:
        if self.stream is None:
            await self.clock.sleep(ms)  # a renewal only moves the deadline later
            return
        try:
            async with asyncio.timeout(ms / 1_000):
                await self._lease_changed.wait()
        except TimeoutError:
            pass

    # -- activities

    async def _poll(self) -> None:
        while not self.ended and not self.leaving:
            request = activity_pb2.PollActivityRequest(
                namespace=self.behaviour.namespace,
                worker_instance_key=self.behaviour.key,
                session_id=self.session,
                wait=ms_to_duration(POLL_WAIT_MS),
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
                await self.clock.sleep(self.behaviour.work_ms)

    def _adopt(self, task: activity_pb2.ActivityTask) -> None:
        ref = ref_from_task(task)
        if ref.key in self.holds:
            return
        accepted, losses = self.heartbeat_state.accept(ref, task.lease_epoch, self.clock.monotonic_ms())
        for loss in losses:
            self.lose(loss.ref)
        if accepted and not self.trusts_its_lease:
            self.heartbeat_state.unbind(ref, self.clock.monotonic_ms())
            accepted = False
        self._stir.set()
        if accepted:
            hold = self.holds[ref.key] = Hold(ref, task.lease_epoch)
            hold.heartbeat_ms = duration_to_ms(task.heartbeat_timeout)
            if task.HasField("heartbeat_timeout") or task.HasField("start_to_close_timeout"):
                hold.is_stuck = Random(f"stuck {self.session} {ref}").random() < 0.25
            asyncio.get_running_loop().create_task(self._work(hold, ours=True))

    async def _take_work(self) -> None:
        """Take up an activity of the program's own engine."""
        while not self.ended and not self.leaving:
            await self.clock.sleep(self.behaviour.work_ms * self.random.uniform(0.5, 1.5))
            if len(self.holds) > 5:
                continue
            if self.behaviour.claims and self.random.random() < 0.5:
                await self._claim(self.random.choice(self.world.contested))
            elif self.behaviour.binds:
                await self._bind()

    async def _bind(self) -> None:
        self._bound += 1
        ref = ActivityRef(f"{self.session}-{self._bound}", task_queue=self.behaviour.task_queue)
        outcome = self._answered[ref.key] = asyncio.get_running_loop().create_future()
        hold = self.holds[ref.key] = Hold(ref, 0)
        self.heartbeat_state.bind(ref, self.clock.monotonic_ms())
        self._stir.set()
        if await outcome and not hold.lost.is_set():
            hold.epoch = self.heartbeat_state.epoch
            asyncio.get_running_loop().create_task(self._work(hold, ours=False))
        else:
            self._end(hold)

    async def _claim(self, workflow_id: str) -> None:
        request = activity_pb2.ClaimActivityRequest(
            namespace=self.behaviour.namespace,
            id=activity_pb2.ActivityId(workflow_id=workflow_id, run_id="-", activity_id="-"),
            worker_instance_key=self.behaviour.key,
            session_id=self.session,
        )
        try:
            response = await self.activities.ClaimActivity(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            return
        self._adopt(response.activity)

    async def _work(self, hold: Hold, *, ours: bool) -> None:
        seconds = self.behaviour.work_ms * self.random.uniform(0.2, 2) / 1_000
        if hold.heartbeat_ms and not hold.is_stuck:
            asyncio.get_running_loop().create_task(self._send_heartbeats(hold))
        try:
            async with asyncio.timeout(None if hold.is_stuck else seconds):
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

    async def _send_heartbeats(self, hold: Hold) -> None:
        """Say three times in each limit that the handler is at work, until its attempt ends."""
        count = 0
        while self.holds.get(hold.ref.key) is hold and not hold.lost.is_set() and not self.ended:
            count += 1
            sent_at = self.world.now()
            request = activity_pb2.RecordActivityHeartbeatRequest(
                namespace=self.behaviour.namespace,
                id=id_to_proto(hold.ref),
                worker_instance_key=self.behaviour.key,
                lease_epoch=hold.epoch,
                attempt=hold.ref.attempt,
                details=f"{self.session} {count}".encode(),
            )
            try:
                await self.activities.RecordActivityHeartbeat(request, timeout=CALL_S)
            except grpc.aio.AioRpcError:
                pass
            else:
                self.world.audit.activities.heartbeat_answered(
                    self.behaviour.namespace,
                    (hold.ref.workflow_id, hold.ref.run_id, hold.ref.activity_id),
                    hold.ref.attempt,
                    sent_at,
                )
            await self.clock.sleep(hold.heartbeat_ms // 3)

    async def _complete(self, hold: Hold) -> None:
        request = activity_pb2.CompleteActivityRequest(
            namespace=self.behaviour.namespace,
            id=id_to_proto(hold.ref),
            worker_instance_key=self.behaviour.key,
            lease_epoch=hold.epoch,
            attempt=hold.ref.attempt,
        )
        self.heartbeat_state.mark_reporting(hold.ref)
        for _ in range(20):
            try:
                await self.activities.CompleteActivity(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                rpc_failure = rpc_failures.failure_of_call(error)  # type: ignore[arg-type]
                if not rpc_failure.is_retryable:
                    self._end(hold)
                    return
                await self.clock.sleep(self.random.randrange(50, 500))
            else:
                self.holds.pop(hold.ref.key, None)
                self.heartbeat_state.forget(hold.ref, self.clock.monotonic_ms())
                self._stir.set()
                return
        self._end(hold)

    def _end(self, hold: Hold) -> None:
        self.holds.pop(hold.ref.key, None)
        self.heartbeat_state.unbind(hold.ref, self.clock.monotonic_ms())
        self._stir.set()

    # -- the end

    def say_goodbye(self, done: Callable[[], None]) -> None:
        self.process.spawn(self._say_goodbye(done))

    async def _say_goodbye(self, done: Callable[[], None]) -> None:
        self.leaving = True
        request = service_pb2.ShutdownWorkerRequest(
            namespace=self.behaviour.namespace,
            worker_instance_key=self.behaviour.key,
            session_id=self.session,
        )
        try:
            await self.liveness.ShutdownWorker(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            pass
        done()
