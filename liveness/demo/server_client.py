"""Read the server's state through its public API: workers, activities and events."""

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
from liveness.sdk.rpc_failures import failure_of_call
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2 import ListWorkersRequest, WatchEventsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker as WorkerMessage

CALL_TIMEOUT_SECONDS = 10.0
NO_QUARANTINE = RetryPolicy(maximum_worker_deaths=0)
"""The fault script may kill the workers of one activity several times; the activity is not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """An event of the server's log."""

    type: str
    worker: str
    activity: str
    data: dict[str, Any]


@dataclass(slots=True)
class ServerSnapshot:
    """The server's answer to the last query."""

    workers: dict[str, WorkerMessage] = field(default_factory=dict)
    activities: list[ActivityInfo] = field(default_factory=list)

    def count(self, *states: ActivityState) -> int:
        return sum(activity.state in states for activity in self.activities)

    def held_by(self, worker: str) -> list[str]:
        return [activity.id for activity in self.activities if activity.worker == worker]


class ServerClient:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._liveness = LivenessServiceStub(self._channel)
        self._client = Client(address, namespace=NAMESPACE, timeout=CALL_TIMEOUT_SECONDS, tls=False, token="")
        self._event_queue: SimpleQueue[Event | grpc.RpcError] = SimpleQueue()
        self._stream = self._liveness.WatchEvents(
            WatchEventsRequest(namespace=NAMESPACE, from_beginning=True)
        )
        Thread(target=self._listen, name="demo-events", daemon=True).start()
        self.completions: Counter[str] = Counter()
        """By activity: the number of completions in the server's log."""
        self.snapshot = ServerSnapshot()

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
                retry=NO_QUARANTINE,
            )
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error

    async def refresh(self) -> None:
        request = ListWorkersRequest(namespace=NAMESPACE, page_size=1_000)
        try:
            answer = await asyncio.to_thread(
                self._liveness.ListWorkers, request, timeout=CALL_TIMEOUT_SECONDS
            )
            activities = await self._client.list(task_queue=TASK_QUEUE)
        except grpc.RpcError as error:
            raise DemoFailed(f"the server did not answer: {_error_text(error)}") from error
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error
        self.snapshot = ServerSnapshot(
            {worker.worker_instance_key: worker for worker in answer.workers}, activities
        )

    async def describe(self, activity: ActivityInfo) -> ActivityInfo:
        """The activity with its result."""
        try:
            return await self._client.describe(activity.ref)
        except LivenessSdkError as error:
            raise DemoFailed(str(error)) from error

    def new_events(self) -> list[ServerEvent]:
        """The events since the last call, in the order of their arrival."""
        events: list[ServerEvent] = []
        while True:
            try:
                item = self._event_queue.get_nowait()
            except Empty:
                return events
            if isinstance(item, grpc.RpcError):
                raise DemoFailed(f"the server's events broke off: {_error_text(item)}") from item
            if item.type == "ActivityCompleted":
                self.completions[item.workflow_id] += 1
            data = json.loads(item.data_json)
            worker = item.worker_instance_key or data.get("worker", "")
            events.append(ServerEvent(type=item.type, worker=worker, activity=item.workflow_id, data=data))

    def _listen(self) -> None:
        try:
            for answer in self._stream:
                for event in answer.events:
                    self._event_queue.put(event)
        except grpc.RpcError as error:
            self._event_queue.put(error)


def _error_text(error: grpc.RpcError) -> str:
    return str(failure_of_call(cast(grpc.Call, error)))  # what a stub raises is both
