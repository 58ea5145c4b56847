"""The server's record of one namespace, and the commands of a test to it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from types import TracebackType
from typing import Any, Self

import grpc

from liveness.domain.keys import shard_of
from liveness.v1 import activity_pb2 as pb
from liveness.v1 import admin_pb2, service_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker as WorkerMessage
from tests.system.worker_processes.worker_processes import LOOK_SECONDS, SECONDS_MAX

COMPLETED = pb.ACTIVITY_STATE_COMPLETED
CALL_SECONDS = 5
TRANSIENT_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # gRPC itself answers so when a call arrives while its server stops.
        grpc.StatusCode.CANCELLED,
    }
)
MARKER = "marker-"
MARKER_QUEUE = "nobody works here"

Reply = Callable[[], Awaitable[Any]]


class NamespaceClient:
    """Its channel outlives the server, which may return at the same address."""

    def __init__(self, address: str, namespace: str) -> None:
        self.namespace = namespace
        self.scheduled: list[str] = []
        """The acknowledged activities."""
        self._marks = count()
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
        )
        self._activities: Any = ActivityServiceStub(self._channel)
        self._liveness: Any = LivenessServiceStub(self._channel)
        self._admin: Any = AdminServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    # -- commands

    async def schedule(
        self,
        name: str,
        activity_type: str,
        *,
        task_queue: str = "queue",
        deaths_max: int | None = None,
        **content: Any,
    ) -> None:
        """Schedule an activity, and repeat the call until it is acknowledged; repetition changes nothing."""
        request = pb.ScheduleActivityRequest(
            namespace=self.namespace,
            id=_id(name, activity_type),
            activity_type=activity_type,
            task_queue=task_queue,
            input=json.dumps(content).encode(),
            retry_policy=pb.RetryPolicy(maximum_worker_deaths=deaths_max),
        )
        await self._retry_until_answered(
            lambda: self._activities.ScheduleActivity(request, timeout=CALL_SECONDS)
        )
        self.scheduled.append(name)

    async def configure(self, **settings: Any) -> None:
        request = admin_pb2.UpdateConfigRequest(
            namespace=self.namespace, set=admin_pb2.NamespaceConfig(**settings)
        )
        await self._admin.UpdateConfig(request, timeout=SECONDS_MAX)

    async def pause(self, worker: str = "") -> None:
        """Pause one worker, or all."""
        request = admin_pb2.PauseWorkersRequest(
            namespace=self.namespace, worker_instance_key=worker, all=not worker
        )
        await self._admin.PauseWorkers(request, timeout=SECONDS_MAX)

    async def resume(self, worker: str = "") -> None:
        request = admin_pb2.ResumeWorkersRequest(
            namespace=self.namespace, worker_instance_key=worker, all=not worker
        )
        await self._admin.ResumeWorkers(request, timeout=SECONDS_MAX)

    async def drain(self, worker: str, limit_s: int) -> None:
        request = admin_pb2.DrainWorkerRequest(namespace=self.namespace, worker_instance_key=worker)
        request.limit.FromSeconds(limit_s)
        await self._admin.DrainWorker(request, timeout=SECONDS_MAX)

    # -- queries

    async def worker(self, key: str) -> WorkerMessage:
        request = service_pb2.DescribeWorkerRequest(namespace=self.namespace, worker_instance_key=key)
        answer = await self._retry_until_answered(
            lambda: self._liveness.DescribeWorker(request, timeout=CALL_SECONDS)
        )
        worker: WorkerMessage = answer.worker
        return worker

    async def worker_until(self, key: str, condition: Callable[[WorkerMessage], bool]) -> WorkerMessage:
        return await self._until(lambda: self.worker(key), condition)

    async def activity(self, name: str, activity_type: str) -> pb.Activity:
        request = pb.DescribeActivityRequest(namespace=self.namespace, id=_id(name, activity_type))
        answer = await self._retry_until_answered(
            lambda: self._activities.DescribeActivity(request, timeout=CALL_SECONDS)
        )
        activity: pb.Activity = answer.activity
        return activity

    async def activity_until(
        self, name: str, activity_type: str, condition: Callable[[pb.Activity], bool]
    ) -> pb.Activity:
        return await self._until(lambda: self.activity(name, activity_type), condition)

    async def completion(self, name: str, activity_type: str) -> dict[str, Any]:
        """Wait until it is COMPLETED; return the worker and the attempt."""
        done = await self.activity_until(name, activity_type, lambda activity: activity.state == COMPLETED)
        result: dict[str, Any] = json.loads(done.result)
        assert result["attempt"] == done.attempt
        return result

    async def states(self) -> Counter[str]:
        """Return the number of activities in each state."""
        request = pb.ListActivitiesRequest(namespace=self.namespace, page_size=1_000)
        answer = await self._retry_until_answered(
            lambda: self._activities.ListActivities(request, timeout=CALL_SECONDS)
        )
        assert not answer.next_page_token
        return Counter(
            pb.ActivityState.Name(activity.state).removeprefix("ACTIVITY_STATE_")
            for activity in answer.activities
            if not activity.id.workflow_id.startswith(MARKER)
        )

    async def all_completed(self) -> None:
        """Wait until all scheduled activities are COMPLETED."""
        wanted = Counter(COMPLETED=len(self.scheduled))
        await self._until(self.states, lambda states: states == wanted)

    # -- the log

    async def events(self) -> list[Event]:
        """Return all events of the namespace up to this call, from the server's own log."""
        markers = await self._mark()
        events: list[Event] = []
        request = service_pb2.WatchEventsRequest(namespace=self.namespace, from_beginning=True)
        watch = self._liveness.WatchEvents(request, timeout=SECONDS_MAX)
        async for answer in watch:
            events.extend(answer.events)
            markers -= {event.workflow_id for event in answer.events}
            if not markers:
                break
        watch.cancel()
        return [event for event in events if not event.workflow_id.startswith(MARKER)]

    async def completions(self) -> Counter[str]:
        """Return how often the log records the completion of each activity."""
        return Counter(
            event.workflow_id for event in await self.events() if event.type == "ActivityCompleted"
        )

    async def assert_each_completed_once(self) -> None:
        """Check that each scheduled activity is completed once in the log, and no other activity is."""
        await self.all_completed()
        completions = await self.completions()
        assert completions == Counter(self.scheduled), completions - Counter(self.scheduled)

    async def _mark(self) -> set[str]:
        """Schedule an activity on each shard: it follows all earlier commits in the shard's log."""
        info = await self._liveness.GetServerInfo(service_pb2.GetServerInfoRequest(), timeout=SECONDS_MAX)
        by_shard: dict[int, str] = {}
        mark, number = next(self._marks), 0
        while len(by_shard) < info.shard_count:
            name = f"{MARKER}{mark}-{number}"
            by_shard.setdefault(shard_of(self.namespace, name, info.shard_count), name)
            number += 1
        for name in by_shard.values():
            request = pb.ScheduleActivityRequest(
                namespace=self.namespace,
                id=_id(name, "marker"),
                activity_type="marker",
                task_queue=MARKER_QUEUE,
            )
            await self._activities.ScheduleActivity(request, timeout=SECONDS_MAX)
        return set(by_shard.values())

    # -- internals

    async def _retry_until_answered(self, call: Reply) -> Any:
        """Repeat the call while the server is unavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SECONDS_MAX
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in TRANSIENT_CODES or loop.time() > deadline:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(self, ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SECONDS_MAX
        while not condition(seen := await ask()):
            assert loop.time() < deadline, f"the wanted answer never came; the last one was {seen}"
            await asyncio.sleep(LOOK_SECONDS)
        return seen


def names(prefix: str, how_many: int) -> list[str]:
    return [f"{prefix}-{number:03}" for number in range(how_many)]


def _id(name: str, activity_type: str) -> pb.ActivityId:
    return pb.ActivityId(workflow_id=name, run_id="-", activity_id=activity_type)
