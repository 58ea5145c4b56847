"""A node with its services and tasks, without gRPC, on a manual clock."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from google.protobuf.duration_pb2 import Duration

from liveness.clock import ManualClock
from liveness.dispatch.matching import Matching
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.reconciler import BindingReconciler
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.engine.shard_directory import ShardDirectory
from liveness.server.admin_service import AdminService
from liveness.server.attach_streams import AttachStreams
from liveness.server.event_feed import EventFeed
from liveness.server.fleet import Fleet
from liveness.server.liveness_service import LivenessService
from liveness.store.api import Store
from liveness.tasks.activity_limits import ActivityLimits
from liveness.tasks.activity_reschedule import ActivityReschedule
from liveness.tasks.maintenance import Maintenance
from liveness.tasks.queue_runner import QueueRunner
from liveness.tasks.sinks import Sink, no_sink
from liveness.tasks.timer_heap import TimerHeaps
from liveness.tasks.timer_runner import TimerRunner
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import service_pb2, worker_pb2
from tests.databases import SHARD_COUNT

STEP_MS = 250
GRACE_MS = 10_000
NAMESPACE = "orders"


class OpenedListener(NodeListener):
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def shard_opened(self, shard: Shard) -> None:
        self.event.set()


class Engine:
    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        *,
        grace_ms: int = GRACE_MS,
        attempts_max: int = 20,
        sink: Sink | None = None,
        directory: ShardDirectory | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        timer_heaps = TimerHeaps()
        self.node = Node(
            store,
            clock,
            shard_count=SHARD_COUNT,
            owner="tests",
            grace_ms=grace_ms,
            commit_interval_ms=0,
            timers=timer_heaps.new_heap,
            directory=directory,
        )
        self.ownership = ActivityOwnership(self.node)
        reconciler = BindingReconciler(self.node, self.ownership)
        self.timers = timers = TimerRunner(
            self.node, timer_heaps, reconciler, ActivityLimits(self.node, self.ownership)
        )
        self._opened = OpenedListener()
        self.matching = Matching(self.node, self.ownership)
        self.queue = QueueRunner(
            self.node,
            self.ownership,
            ActivityReschedule(no_sink if sink is None else lambda namespace, task_queue: sink),
            attempts_max=attempts_max,
            random=Random(7),
            has_pending_expiries=lambda: timers.is_behind,
        )
        self.maintenance = Maintenance(self.node, task_retention_ms=7 * 86_400_000)
        self.feed = EventFeed(self.node)
        self.streams = AttachStreams(self.node)
        self.telemetry = Telemetry(self.node)
        self.liveness = LivenessService(self.node, self.feed, self.streams, Random(7), self.telemetry)
        self.admin = AdminService(self.node, Fleet(self.node, self.telemetry))
        listeners = (timers, self.telemetry, self._opened, self.matching, self.feed, self.streams, self.queue)
        for listener in listeners:
            self.node.add_listener(listener)

    async def start(self) -> Engine:
        await self.node.open()
        self.node.start(tick=False)
        return self

    async def stop(self) -> None:
        """Stop gracefully: everything is committed and checkpointed."""
        await self.node.close()

    async def crash(self) -> None:
        """End abruptly, as after `kill -9`; the database stays as the last commit left it."""
        await self.node._tasks.close()

    async def step(self, ms: int) -> None:
        """Move the clock, tick once, and return when the decisions are committed or lost."""
        self.clock.move(ms)
        self.node.tick()
        await self.timers.wait()
        await self.node.barrier().wait()

    async def advance(self, ms: int) -> None:
        while ms > 0:
            await self.step(min(ms, STEP_MS))
            ms -= STEP_MS

    async def recovered(self) -> None:
        """Wait until every shard serves."""
        while len(self.node.shards()) < SHARD_COUNT:
            self._opened.event.clear()
            await self._opened.event.wait()

    def shard_of(self, worker: str, namespace: str = NAMESPACE) -> Shard:
        return self.node.shard(namespace, worker)

    def worker(self, name: str, namespace: str = NAMESPACE) -> Worker:
        return self.shard_of(name, namespace).workers[WorkerKey(namespace, name)]

    async def beat(
        self, worker: str = "w", *, namespace: str = NAMESPACE, lease_ms: int | None = None, **fields: Any
    ) -> worker_pb2.HeartbeatResult:
        beat = worker_pb2.WorkerHeartbeat(worker_instance_key=worker, **fields)
        if lease_ms is not None:
            beat.lease_duration.CopyFrom(duration(lease_ms))
        return await self.send(namespace, beat)

    async def send(self, namespace: str, beat: worker_pb2.WorkerHeartbeat) -> worker_pb2.HeartbeatResult:
        request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=beat)
        return worker_pb2.HeartbeatResult.FromString(await self.liveness.record_worker_heartbeat(request))


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def activity(name: str, attempt: int = 1, task_queue: str = "queue", **fields: Any) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(
        workflow_id=f"workflow-{name}",
        run_id="run",
        activity_id=name,
        attempt=attempt,
        task_queue=task_queue,
        **fields,
    )
