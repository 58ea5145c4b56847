"""Sends random calls to a server in this process, and checks what must hold whatever a client sends.

No call is answered with UNKNOWN, INTERNAL or UNAVAILABLE, no step of the event loop takes longer than 50 ms of processor time,
and memory does not grow beyond what is stored. Afterwards the server still renews a lease and lists its workers.

    Fuzzer(target, GrpcInputs(seed)).run(first=0, count=10_000)
"""

from __future__ import annotations

import asyncio
import gc
import os
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc

from liveness.app import Server
from liveness.config.settings import Settings
from liveness.server.platform import Platform
from liveness.v1 import activity_pb2, admin_pb2, service_pb2, worker_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.fuzz.grpc_inputs import GrpcInput, GrpcInputs
from tests.fuzz.in_process_calls import RecordedListeners, call
from tests.fuzz.loop_steps import STEP_MS_MAX, LoopSteps, Step

SHARDS = 8
CONCURRENT = 64
INPUTS_PER_ROUND = 1_000
"""After each round the settings are those of the beginning again, and garbage is collected."""
CALL_S_MAX = 0.3
"""A client leaves a call that waits for longer, such as a poll."""
HANG_S_MAX = 60.0
"""A call that its client has left ends within this time."""
REPEATS = 3
"""How often an input is sent by itself if one of its steps was long."""
UNATTRIBUTED_MAX = 3
"""How many long steps of the server's own tasks are forgiven: the machine may have been busy."""
MEMORY_BYTES_MAX = 150 * 1024 * 1024
BYTES_PER_STORED_MAX = 16 * 1024
"""Workers and activities may be large, and are kept in memory."""
NAMESPACES = ("", "orders", "other")
UNEXPECTED = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,  # "try again", which does not help: the database refused the value
}


class Target:
    """A server in this process whose handlers can be called without a network."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.listeners = RecordedListeners()
        self.url = url
        values = {"shards": SHARDS, "cluster_listen": "127.0.0.1:0", **settings}
        self.server = Server(
            Settings(db=url, listen="127.0.0.1:0", **values),
            platform=Platform(listener=self.listeners.listener),
        )

    async def start(self) -> Target:
        await self.server.start()
        self.channel: Any = grpc.aio.insecure_channel(self.server.address)
        self.liveness: Any = LivenessServiceStub(self.channel)
        self.admin: Any = AdminServiceStub(self.channel)
        self.activities: Any = ActivityServiceStub(self.channel)
        await self.prepare()
        return self

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop()

    async def prepare(self) -> None:
        """Undo what calls have changed in the settings, and let many calls find a worker and an activity."""
        names = [field.name for field in admin_pb2.NamespaceConfig.DESCRIPTOR.fields]
        for namespace in NAMESPACES:
            await self.admin.UpdateConfig(admin_pb2.UpdateConfigRequest(namespace=namespace, unset=names))
            if namespace:
                limits = admin_pb2.NamespaceConfig(worker_heartbeat_rate=0, worker_sessions_per_minute=0)
                await self.admin.UpdateConfig(
                    admin_pb2.UpdateConfigRequest(namespace=namespace, set=limits, unset=names[:0])
                )
        beat = worker_pb2.WorkerHeartbeat(worker_instance_key="w", session_id="s", task_queue="q")
        for request in (
            self.liveness.RecordWorkerHeartbeat(
                service_pb2.RecordWorkerHeartbeatRequest(namespace="orders", heartbeat=beat)
            ),
            self.activities.ScheduleActivity(
                activity_pb2.ScheduleActivityRequest(
                    namespace="orders",
                    id=activity_pb2.ActivityId(workflow_id="f", run_id="r", activity_id="a"),
                    task_queue="q",
                )
            ),
        ):
            try:
                await request
            except grpc.aio.AioRpcError as error:
                assert error.code() not in UNEXPECTED, error  # noqa: PT017  # a refusal is expected

    async def lift_rate_limits(self, namespace: str) -> None:
        limits = admin_pb2.NamespaceConfig(worker_heartbeat_rate=0, worker_sessions_per_minute=0)
        await self.admin.UpdateConfig(admin_pb2.UpdateConfigRequest(namespace=namespace, set=limits))

    def stored_count(self) -> int:
        """How many workers and activities are in memory."""
        shards = self.server.node.shards()
        return sum(len(shard.workers) for shard in shards) + self.server.node.open_activities.counts.total()

    async def check_serves(self) -> None:
        """Renew a lease and list its worker, as the next client would."""
        await self.prepare()
        # A session of its own: servers before this one may have checked the same database.
        namespace, session_id, outcome = "after-all", uuid4().hex, 0
        for sequence in (1, 2):
            beat = worker_pb2.WorkerHeartbeat(
                worker_instance_key="w", session_id=session_id, sequence=sequence, new_incarnation=True
            )
            request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=beat)
            outcome = (await self.liveness.RecordWorkerHeartbeat(request)).outcome
        assert outcome == worker_pb2.HEARTBEAT_OUTCOME_RENEWED
        listed = await self.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=namespace))
        assert [worker.worker_instance_key for worker in listed.workers] == ["w"]


class Fuzzer:
    def __init__(self, target: Target, inputs: GrpcInputs) -> None:
        self.codes: Counter[grpc.StatusCode] = Counter()
        self.longest = Step(0, "")
        """The longest step that one input took by itself."""
        self._target = target
        self._inputs = inputs
        self._steps = LoopSteps()
        self._unattributed: list[Step] = []

    async def run(self, first: int, count: int) -> None:
        before_bytes = 0
        was_enabled = gc.isenabled()
        # A full collection in the middle of a step would count as a part of it.
        gc.disable()
        try:
            with self._steps:
                for start in range(first, first + count, INPUTS_PER_ROUND):
                    await self._round(start, min(INPUTS_PER_ROUND, first + count - start))
                    gc.collect(1 if start // INPUTS_PER_ROUND % 10 else 2)
                    # The first rounds load code and fill caches.
                    before_bytes = before_bytes or resident_bytes()
        finally:
            if was_enabled:
                gc.enable()
        assert len(self._unattributed) <= UNATTRIBUTED_MAX, self._unattributed
        allowed = before_bytes + MEMORY_BYTES_MAX + BYTES_PER_STORED_MAX * self._target.stored_count()
        assert resident_bytes() < allowed, f"{resident_bytes()} bytes in memory, {before_bytes} at the start"

    async def _round(self, first: int, count: int) -> None:
        await self._target.prepare()
        drawn = iter([self._inputs.draw(number) for number in range(first, first + count)])

        async def send_each() -> None:
            for given in drawn:
                # A task for each, so that its steps can be told from those of others.
                await asyncio.create_task(self._send(given), name=str(given.number))

        self._steps.clear()
        await asyncio.gather(*(asyncio.create_task(send_each(), name="sender") for _ in range(CONCURRENT)))
        long = [step for step in self._steps.slow if step.ms > STEP_MS_MAX]
        for step in long:
            if step.task.isdecimal():
                await self._check_alone(self._inputs.draw(int(step.task)), step)
            elif "Fuzzer" not in step.what:
                self._unattributed.append(step)

    async def _check_alone(self, given: GrpcInput, step: Step) -> None:
        longest = []
        for _ in range(REPEATS):
            self._steps.clear()
            await asyncio.create_task(self._send(given), name=str(given.number))
            longest.append(max((each.ms for each in self._steps.slow if each.task.isdecimal()), default=0.0))
        self.longest = max(self.longest, Step(min(longest), given.path))
        assert min(longest) <= STEP_MS_MAX, f"{step} and then {longest} ms: {self._name(given)}"

    async def _send(self, given: GrpcInput) -> None:
        task = asyncio.current_task()
        assert task is not None
        leave = asyncio.get_running_loop().call_later(CALL_S_MAX, task.cancel)
        try:
            context = await call(self._target.listeners, given)
        except asyncio.CancelledError:
            task.uncancel()
            self.codes[grpc.StatusCode.CANCELLED] += 1
            return
        except Exception as error:
            raise AssertionError(f"UNKNOWN: {self._name(given)}\n{traceback.format_exc()}") from error
        finally:
            leave.cancel()
        is_for_another_node = given.on_cluster_port and "liveness-to" in dict(given.metadata)
        if not (is_for_another_node and context.status is grpc.StatusCode.UNAVAILABLE):
            assert context.status not in UNEXPECTED, (
                f"{context.status} {context.details}: {self._name(given)}"
            )
        self.codes[context.status] += 1

    def _name(self, given: GrpcInput) -> str:
        return (
            f"seed {self._inputs.seed}, {given}\n"
            f"Repeat it: python -m tests.fuzz --seed {self._inputs.seed} --first {given.number} --count 1"
        )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
