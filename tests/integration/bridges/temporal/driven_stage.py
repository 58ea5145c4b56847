"""liveness and bridges in this process on one clock that the test moves, with a server in Temporal's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from typing import Any, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerSlotsInfo
from temporalio.api.workflowservice.v1 import request_response_pb2 as pb

from liveness.bridges.temporal.bridge import TemporalBridge
from liveness.bridges.temporal.recorder import SPACING_MS, TICK_MS
from liveness.bridges.temporal.settings import BridgeSettings
from liveness.bridges.temporal.worker_entry import WorkerEntry
from liveness.testing import ManualClock, Server
from liveness.v1.activity_pb2 import Activity, ListActivitiesRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker
from tests.integration.bridges.temporal.upstream_server import SERVICE, UpstreamServer

LIMIT_S = 60
NAMESPACE = "shop"
INTERVAL_MS = 1_000
"""Between two heartbeats of a Temporal worker."""
LOOK_S = 0.005
T = TypeVar("T")


class DrivenStage:
    def __init__(self, server: Server, clock: ManualClock, upstream: UpstreamServer) -> None:
        self.server = server
        self.clock = clock
        self.upstream = upstream
        self.bridges: list[TemporalBridge] = []
        self._channel = grpc.aio.insecure_channel(server.address)
        self.liveness: Any = LivenessServiceStub(self._channel)
        self.activities: Any = ActivityServiceStub(self._channel)
        self.admin: Any = AdminServiceStub(self._channel)

    async def start_bridge(self, **settings: Any) -> TemporalBridge:
        """Start a bridge to which a broken connection means nothing, unless the test says otherwise."""
        values: dict[str, Any] = {
            "upstream": (self.upstream.address,),
            "liveness": (self.server.address,),
            "listen": "127.0.0.1:0",
            "hint_grace_ms": 0,
        }
        bridge = TemporalBridge(BridgeSettings(**(values | settings)), self.clock)
        await bridge.start()
        self.bridges.append(bridge)
        return bridge

    async def stop(self) -> None:
        for bridge in self.bridges:
            await bridge.stop()
        await self._channel.close()

    # -- time

    async def advance(self, ms: int) -> None:
        """Let time pass in steps, in each of which liveness and the bridges do what is due."""
        for _ in range(0, ms, TICK_MS):
            await self.server.advance(TICK_MS)
            await self._settle()

    async def wait(self, work: Awaitable[T]) -> T:
        """Wait for `work`. Time passes only while a bridge waits for its turn to send."""
        task = asyncio.ensure_future(work)
        async with asyncio.timeout(LIMIT_S):
            while not task.done():
                await self._send_changes()
                await asyncio.wait((task,), timeout=LOOK_S)
        return task.result()

    async def flush(self) -> None:
        """Wait until the bridges have told liveness all that they know."""
        async with asyncio.timeout(LIMIT_S):
            while any(entry.has_changes or entry.is_sending for entry in self._entries()):
                await self._send_changes()
                await asyncio.sleep(LOOK_S)

    async def advance_until(self, condition: Callable[[], Awaitable[T]]) -> T:
        """Let time pass until the condition returns something true, and return that."""
        async with asyncio.timeout(LIMIT_S):
            while not (found := await condition()):
                await self.advance(TICK_MS)
                await asyncio.sleep(LOOK_S)
        return found

    async def _settle(self) -> None:
        """Let what the step has woken run, and wait for the calls of liveness that it makes."""
        for _ in range(10):
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            while any(entry.is_sending for entry in self._entries()):
                await asyncio.sleep(LOOK_S)

    async def _send_changes(self) -> None:
        if any(entry.has_changes and not entry.is_sending for entry in self._entries()):
            await self.server.advance(SPACING_MS)

    def _entries(self) -> Iterator[WorkerEntry]:
        for bridge in self.bridges:
            yield from bridge.recorder.workers()

    # -- what liveness knows

    async def worker(self, key: str = "w1") -> Worker:
        request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
        worker: Worker = (await self.liveness.DescribeWorker(request, timeout=LIMIT_S)).worker
        return worker

    async def bound(self, key: str = "w1") -> list[str]:
        return sorted(reference.activity_id for reference in (await self.worker(key)).bound_activities)

    async def rescue_activity(self) -> Activity | None:
        """The only rescue, or None while there is none."""
        found = await self.activities.ListActivities(
            ListActivitiesRequest(namespace=NAMESPACE), timeout=LIMIT_S
        )
        assert len(found.activities) <= 1
        return found.activities[0] if found.activities else None


class TemporalWorker:
    """Sends what a Temporal worker sends, over one connection."""

    def __init__(self, stage: DrivenStage, address: str, key: str = "w1") -> None:
        self._stage = stage
        self._key = key
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))

    async def close(self) -> None:
        await self._channel.close()

    async def call(self, method: str, request: Any) -> bytes:
        call: Any = self._channel.unary_unary(SERVICE + method)
        answer: bytes = await self._stage.wait(call(request.SerializeToString(), timeout=LIMIT_S))
        return answer

    async def poll(self) -> bytes:
        return await self.call(
            "PollActivityTaskQueue",
            pb.PollActivityTaskQueueRequest(
                namespace=NAMESPACE,
                worker_instance_key=self._key,
                identity="me",
                task_queue=TaskQueue(name="q"),
            ),
        )

    async def beat(self, used_slots: int = 1) -> None:
        """Send a heartbeat of Temporal's. The bridge may tell liveness a little later."""
        beat = WorkerHeartbeat(
            worker_instance_key=self._key,
            worker_identity="me",
            task_queue="q",
            deployment_version=WorkerDeploymentVersion(deployment_name="shop", build_id="v1"),
            elapsed_since_last_heartbeat=Duration(seconds=INTERVAL_MS // 1_000),
            activity_task_slots_info=WorkerSlotsInfo(
                current_available_slots=5, current_used_slots=used_slots
            ),
        )
        request = pb.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, worker_heartbeat=[beat])
        await self.call("RecordWorkerHeartbeat", request)

    async def live(self, ms: int, used_slots: int = 1) -> None:
        """Send heartbeats for some time."""
        for _ in range(0, ms, INTERVAL_MS):
            await self.beat(used_slots)
            await self._stage.advance(INTERVAL_MS)


class LoadBalancer:
    """Passes each new TCP connection on to the next of its addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = cycle(addresses)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        host, _, port = next(self._addresses).rpartition(":")
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        finally:
            writer.close()
            to_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side has reset the connection
    finally:
        writer.close()
