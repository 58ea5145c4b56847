"""Sends random calls to servers in this process, and checks what must hold whatever a client sends.

No call is answered with UNKNOWN, INTERNAL or UNAVAILABLE, no step of the event loop takes longer than 50 ms of processor time,
and memory does not grow beyond what is stored. Afterwards the server still renews a lease and lists its workers.

    target = await Target(url, TARGETS["frontend"]).start()
    Fuzzer(target, target.inputs(seed)).run(first=0, count=10_000)
"""

from __future__ import annotations

import asyncio
import gc
import os
import traceback
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

import grpc

from liveness.app import Server
from liveness.cli.http_listener import bind_http, start_http
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.config.settings import Settings
from liveness.doors.noetl.paths import noetl_door
from liveness.doors.noetl.settings import NoetlSettings
from liveness.frontend.app import Frontend
from liveness.server.platform import Platform
from liveness.v1 import activity_pb2, admin_pb2, service_pb2, worker_pb2
from tests.fuzz.credentials import ADMIN, insert_tokens, jwt_settings
from tests.fuzz.grpc_inputs import THIS_NODE, GrpcInput, GrpcInputs
from tests.fuzz.in_process_calls import CallContext, RecordedListeners, call
from tests.fuzz.loop_steps import STEP_MS_MAX, LoopSteps, Step
from tests.integration.security.auth_harness import Client

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
UNLIMITED = {
    "principal_calls_per_s": 0.0,
    "principal_bytes_per_s": 0.0,
    "principal_streams_max": 0,
    "principal_connections_max": 0,
}
"""One principal makes most of the calls."""
NAMESPACES = ("", "orders", "other")
UNEXPECTED = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,  # "try again", which does not help: the database refused the value
}
EXPECTED_REASONS = {"SUPERVISOR_SILENT"}
"""Why a call is answered UNAVAILABLE although the server does what it should: somebody else has to come back."""
FOR_ANOTHER_NODE = {"WRONG_NODE", "SHARD_MOVED"}
"""Why a node refuses what another one or a frontend sends to it, which then goes on to the right node."""
# A frontend forwards methods that it does not know. Of one that ends while its messages are written, it never learns how it ended.


class Shape(NamedTuple):
    """What stands between a client and the database."""

    nodes: int = 1
    has_frontend: bool = False
    asks_callers: bool = False


ONE_NODE = Shape()
TARGETS = {
    "node": ONE_NODE,
    "authentication": Shape(asks_callers=True),
    "frontend": Shape(has_frontend=True),
    "frontend, authentication": Shape(has_frontend=True, asks_callers=True),
    "two nodes": Shape(nodes=2),
    "two nodes, frontend, authentication": Shape(nodes=2, has_frontend=True, asks_callers=True),
}
"""By name, as rows and messages call them. Two nodes need PostgreSQL."""


class Target:
    """Servers in this process. The handlers of those that a client reaches can be called without a network."""

    def __init__(self, url: str, shape: Shape = ONE_NODE, **settings: Any) -> None:
        self.url = url
        self.shape = shape
        self._settings = settings
        self._stack = AsyncExitStack()
        self.servers: list[Server] = []
        self._nodes: list[RecordedListeners] = []
        self._frontend: RecordedListeners | None = None
        self.entrance: Server | Frontend
        """What clients call; of two nodes, the first."""

    @property
    def name(self) -> str:
        return next((name for name, shape in TARGETS.items() if shape == self.shape), "node")

    @property
    def server(self) -> Server:
        return self.servers[0]

    def inputs(self, seed: int) -> GrpcInputs:
        return GrpcInputs(seed, has_credentials=self.shape.asks_callers)

    async def start(self) -> Target:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start(self) -> None:
        shape, stack = self.shape, self._stack
        common: dict[str, Any] = {"listen": "127.0.0.1:0", **UNLIMITED}
        settings = {
            "db": self.url,
            "shards": SHARDS,
            "cluster_listen": "127.0.0.1:0",
            **common,
            **self._settings,
        }
        if shape.nodes > 1:
            settings["takeover_grace_ms"] = 0
        if shape.asks_callers:
            folder = stack.enter_context(TemporaryDirectory(prefix="liveness-fuzz-"))
            settings |= {"auth": "on", **jwt_settings(Path(folder))}
        for _ in range(shape.nodes):
            listeners = RecordedListeners()
            server = Server(
                Settings(**settings),
                platform=Platform(listener=listeners.listener),
            )
            self.servers.append(await stack.enter_async_context(server))
            self._nodes.append(listeners)
        while not all(node.membership.is_fully_serving and node.node.shards() for node in self.servers):
            await self.server.routes.wait_for_change(SystemClock(), 50)
        self.entrance = self.server
        if shape.has_frontend:
            self._frontend = RecordedListeners()
            self.entrance = await stack.enter_async_context(self._make_frontend(self._frontend, common))
            while not self.entrance.routes.members():
                await self.entrance.routes.wait_for_change(SystemClock(), 50)
        channel: Any = await stack.enter_async_context(grpc.aio.insecure_channel(self.entrance.address))
        client = Client(channel, ADMIN.text if shape.asks_callers else None)
        self.liveness, self.admin, self.activities = client.liveness, client.admin, client.activities
        await self.prepare()

    def _make_frontend(self, listeners: RecordedListeners, settings: dict[str, Any]) -> Frontend:
        nodes = tuple(server.cluster_address for server in self.servers)
        auth = "on" if self.shape.asks_callers else "off"
        return Frontend(FrontendSettings(**settings, nodes=nodes, auth=auth), listener=listeners.listener)

    async def start_http(self) -> int:
        """Serve HTTP at the entrance, as its process does. Returns the port."""
        listen_address = bind_http("127.0.0.1:0")
        assert listen_address is not None
        http = await start_http(
            self.entrance,
            listen_address,
            SystemClock(),
            http="127.0.0.1:0",
            hosts=(),
            metrics=self.entrance.metrics,
            asks_callers=self.shape.asks_callers,
            doors=[noetl_door(NoetlSettings(namespace="orders"), SystemClock())],
        )
        self._stack.push_async_callback(http.stop)
        return listen_address.port

    async def stop(self) -> None:
        await self._stack.aclose()

    async def call(self, given: GrpcInput) -> CallContext:
        """Make the call where its client would: at the frontend, or at one of the nodes."""
        chosen = given.number % len(self.servers)
        own_id = self.servers[chosen].node.owner
        metadata = [(name, own_id if value == THIS_NODE else value) for name, value in given.metadata]
        if self._frontend is not None and not given.on_cluster_port:
            return await call(self._frontend, given, metadata)
        return await call(self._nodes[chosen], given, metadata)

    async def prepare(self) -> None:
        """Undo what calls have changed in the settings, and let many calls find workers and an activity."""
        if self.shape.asks_callers:
            await insert_tokens(self.server.store)
            for server in self.servers:
                assert server.authenticator is not None
                await server.authenticator.tokens.refresh()
        names = [field.name for field in admin_pb2.NamespaceConfig.DESCRIPTOR.fields]
        for namespace in NAMESPACES:
            await self.admin.UpdateConfig(admin_pb2.UpdateConfigRequest(namespace=namespace, unset=names))
            if namespace:
                limits = admin_pb2.NamespaceConfig(worker_heartbeat_rate=0, worker_sessions_per_minute=0)
                await self.admin.UpdateConfig(
                    admin_pb2.UpdateConfigRequest(namespace=namespace, set=limits, unset=names[:0])
                )
        beats = [
            worker_pb2.WorkerHeartbeat(worker_instance_key=key, session_id="s", task_queue="q")
            for key in ("w", "pool:a", "worker:g:0", "supervisor:g")
        ]
        for request in (
            self.liveness.RecordWorkerHeartbeats(
                service_pb2.RecordWorkerHeartbeatsRequest(namespace="orders", heartbeats=beats)
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
        return sum(
            sum(len(shard.workers) for shard in server.node.shards())
            + server.node.open_activities.counts.total()
            for server in self.servers
        )

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
                    # A task of its own: drawing the inputs is a long step that is none of the server's.
                    await asyncio.create_task(
                        self._round(start, min(INPUTS_PER_ROUND, first + count - start))
                    )
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
            context = await self._target.call(given)
        except asyncio.CancelledError:
            task.uncancel()
            self.codes[grpc.StatusCode.CANCELLED] += 1
            return
        except Exception as error:
            raise AssertionError(f"UNKNOWN: {self._name(given)}\n{traceback.format_exc()}") from error
        finally:
            leave.cancel()
        is_refused_early = not given.is_known and context.reason == "NODE_LOST"
        if not is_refused_early and not (given.on_cluster_port and context.reason in FOR_ANOTHER_NODE):
            assert context.status not in UNEXPECTED or context.reason in EXPECTED_REASONS, (
                f"{context.status} {context.details}: {self._name(given)}"
            )
        self.codes[context.status] += 1

    def _name(self, given: GrpcInput) -> str:
        return (
            f"seed {self._inputs.seed}, {given}\n"
            f"Repeat it: python -m tests.fuzz --target '{self._target.name}' --seed {self._inputs.seed} "
            f"--first {given.number} --count 1"
        )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
