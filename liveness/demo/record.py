"""What the server knows, read through its API like anybody would: workers, activities, and events as they happen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, cast

import grpc

from liveness.demo.plan import ACTIVITY_TYPE, NAMESPACE, TASK_QUEUE, DemoFailed
from liveness.sdk import ActivityInfo, ActivityState, Client, LivenessSdkError, RetryPolicy
from liveness.sdk.refusals import of_call
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2 import ListWorkersRequest, WatchEventsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker as WorkerMessage

CALL_SECONDS = 10.0
UNDYING = RetryPolicy(maximum_worker_deaths=0)
"""The plot may hit the same activity again and again, and that says nothing against the activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event of the server's log."""

    type: str
    worker: str
    activity: str
    data: dict[str, Any]


@dataclass(slots=True)
class Glance:
    """What the server said when it was asked last."""

    workers: dict[str, WorkerMessage] = field(default_factory=dict)
    activities: list[ActivityInfo] = field(default_factory=list)

    def count(self, *states: ActivityState) -> int:
        return sum(activity.state in states for activity in self.activities)

    def held_by(self, worker: str) -> list[str]:
        return [activity.id for activity in self.activities if activity.worker == worker]


class Record:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._liveness = LivenessServiceStub(self._channel)
        self._client = Client(address, namespace=NAMESPACE, timeout=CALL_SECONDS)
        self._arrived: SimpleQueue[Event | grpc.RpcError] = SimpleQueue()
        self._stream = self._liveness.WatchEvents(
            WatchEventsRequest(namespace=NAMESPACE, from_beginning=True)
        )
        Thread(target=self._listen, name="demo-events", daemon=True).start()
        self.completions: Counter[str] = Counter()
        """How often the log says that an activity was completed."""
        self.glance = Glance()

    def close(self) -> None:
        self._stream.cancel()
        self._client.close()
        self._channel.close()

    async def schedule(self, name: str, work_ms: int) -> None:
        try:
            await self._client.schedule(
                ACTIVITY_TYPE,
                id=name,
                input={"block": name, "work_ms": work_ms},
                task_queue=TASK_QUEUE,
                retry=UNDYING,
            )
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error

    async def look(self) -> None:
        request = ListWorkersRequest(namespace=NAMESPACE, page_size=1_000)
        try:
            answer = await asyncio.to_thread(self._liveness.ListWorkers, request, timeout=CALL_SECONDS)
            activities = await self._client.list(task_queue=TASK_QUEUE)
        except grpc.RpcError as error:
            raise DemoFailed(f"the server did not answer: {_why(error)}") from error
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error
        self.glance = Glance({worker.worker_instance_key: worker for worker in answer.workers}, activities)

    async def in_full(self, activity: ActivityInfo) -> ActivityInfo:
        """With its result."""
        try:
            return await self._client.describe(activity.ref)
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error

    def news(self) -> list[Happening]:
        """What has happened since the last time, in the order in which it became known."""
        happenings: list[Happening] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except Empty:
                return happenings
            if isinstance(arrived, grpc.RpcError):
                raise DemoFailed(f"the server's events broke off: {_why(arrived)}") from arrived
            if arrived.type == "ActivityCompleted":
                self.completions[arrived.workflow_id] += 1
            data = json.loads(arrived.data_json)
            worker = arrived.worker_instance_key or data.get("worker", "")
            happenings.append(
                Happening(type=arrived.type, worker=worker, activity=arrived.workflow_id, data=data)
            )

    def _listen(self) -> None:
        try:
            for answer in self._stream:
                for event in answer.events:
                    self._arrived.put(event)
        except grpc.RpcError as error:
            self._arrived.put(error)


def _why(error: grpc.RpcError) -> str:
    return str(of_call(cast(grpc.Call, error)))  # what a stub raises is both
