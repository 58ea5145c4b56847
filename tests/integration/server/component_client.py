"""A supervisor as tests play it: calls of ComponentService about one group, over real gRPC."""

from __future__ import annotations

from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.clock import Clock
from liveness.v1 import component_pb2, service_pb2, worker_pb2
from liveness.v1 import component_service_pb2 as pb
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, heartbeat

STARTING = component_pb2.COMPONENT_STATUS_STARTING
HEALTHY = component_pb2.COMPONENT_STATUS_HEALTHY
PAUSED = component_pb2.COMPONENT_STATUS_PAUSED
STOPPING = component_pb2.COMPONENT_STATUS_STOPPING
STOPPED = component_pb2.COMPONENT_STATUS_STOPPED
CRASHED = component_pb2.COMPONENT_STATUS_CRASHED
FAILED = component_pb2.COMPONENT_STATUS_FAILED
RESTART = component_pb2.COMPONENT_ACTION_RESTART
SCALE = component_pb2.COMPONENT_ACTION_SCALE
LEASE_MS = 3_600_000


def timestamp(wall_ms: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(wall_ms)
    return stamp


def killed(wall_ms: int, *lines: str) -> component_pb2.ProcessExit:
    return component_pb2.ProcessExit(signal="SIGKILL", time=timestamp(wall_ms), last_lines=lines)


class ComponentClient:
    """The supervisor of one group. It numbers reports as a real one does."""

    def __init__(
        self,
        channel: Any,
        clock: Clock,
        group: str = "images",
        namespace: str = NAMESPACE,
        metadata: Any = None,
    ) -> None:
        self.group = group
        self.key = f"supervisor:{group}"
        self.session_id = f"session of {self.key}"
        self._clock = clock
        self._namespace = namespace
        self._metadata = metadata
        # Untyped, because tests send invalid values.
        self.components: Any = ComponentServiceStub(channel)
        self._workers: Any = LivenessServiceStub(channel)
        self._sequences: dict[str, int] = {}
        self.numbers: dict[int, int] = {}

    @classmethod
    def of(cls, harness: ServerHarness, group: str = "images", namespace: str = NAMESPACE) -> ComponentClient:
        harness.lift_rate_limits(namespace)
        return cls(harness.channel, harness.clock, group, namespace)

    def id(self, index: int = 0) -> str:
        return f"worker:{self.group}:{index}"

    async def beat(
        self, key: str, session_id: str, *, lease_ms: int = LEASE_MS, **fields: Any
    ) -> worker_pb2.HeartbeatResult:
        sequence = self._sequences[session_id] = self._sequences.get(session_id, 0) + 1
        beat = heartbeat(key, lease_ms=lease_ms, session_id=session_id, sequence=sequence, **fields)
        request = service_pb2.RecordWorkerHeartbeatRequest(namespace=self._namespace, heartbeat=beat)
        result: worker_pb2.HeartbeatResult = await self._workers.RecordWorkerHeartbeat(
            request, metadata=self._metadata
        )
        return result

    async def supervise(self, **fields: Any) -> None:
        """Begin to run the group."""
        await self.beat(self.key, self.session_id, only_if_free=True, **fields)

    async def report(
        self, status: int, index: int = 0, session_id: str = "p1", **fields: Any
    ) -> pb.ReportComponentResponse:
        number = fields.pop("number", self.numbers.get(index, 0) + 1)
        answer: pb.ReportComponentResponse = await self.components.ReportComponent(
            pb.ReportComponentRequest(
                namespace=self._namespace,
                worker_instance_key=self.id(index),
                session_id=session_id,
                number=number,
                status=status,  # type: ignore[arg-type]
                time=timestamp(self._clock.wall_ms()),
                **{"wanted": True, **fields},
            ),
            metadata=self._metadata,
        )
        self.numbers[index] = number
        return answer

    async def start(self, index: int = 0, session_id: str = "p1", **fields: Any) -> None:
        """Start a process, up to HEALTHY. `fields`: of its heartbeat."""
        await self.beat(self.id(index), session_id, **fields)
        await self.report(STARTING, index, session_id, process_id=100 + index)
        await self.report(HEALTHY, index, session_id, process_id=100 + index)

    async def poll(self, *, wait_ms: int = 0, **fields: Any) -> pb.PollComponentOrdersResponse:
        answer: pb.PollComponentOrdersResponse = await self.components.PollComponentOrders(
            pb.PollComponentOrdersRequest(
                namespace=self._namespace,
                worker_instance_key=self.key,
                wait=duration(wait_ms),
                **{"session_id": self.session_id, **fields},
            ),
            metadata=self._metadata,
        )
        return answer

    async def order(self, action: int = RESTART, **fields: Any) -> pb.OrderComponentsResponse:
        answer: pb.OrderComponentsResponse = await self.components.OrderComponents(
            pb.OrderComponentsRequest(
                namespace=self._namespace,
                group=self.group,
                action=action,  # type: ignore[arg-type]
                **fields,
            ),
            metadata=self._metadata,
        )
        return answer

    async def component(self, index: int = 0) -> component_pb2.Component:
        answer: pb.GetComponentResponse = await self.components.GetComponent(
            pb.GetComponentRequest(namespace=self._namespace, worker_instance_key=self.id(index)),
            metadata=self._metadata,
        )
        return answer.component

    async def listed(self, **fields: Any) -> list[component_pb2.Component]:
        answer: pb.ListComponentsResponse = await self.components.ListComponents(
            pb.ListComponentsRequest(namespace=self._namespace, **fields), metadata=self._metadata
        )
        return list(answer.components)

    async def groups(self) -> list[component_pb2.ComponentGroup]:
        answer: pb.ListComponentGroupsResponse = await self.components.ListComponentGroups(
            pb.ListComponentGroupsRequest(namespace=self._namespace), metadata=self._metadata
        )
        return list(answer.groups)

    async def logs(self, index: int = 0, **fields: Any) -> pb.GetComponentLogsResponse:
        answer: pb.GetComponentLogsResponse = await self.components.GetComponentLogs(
            pb.GetComponentLogsRequest(
                namespace=self._namespace, worker_instance_key=self.id(index), **fields
            ),
            metadata=self._metadata,
        )
        return answer

    async def send_logs(self, request_id: str, *lines: str, after: str = "") -> None:
        await self.components.SendComponentLogs(
            pb.SendComponentLogsRequest(
                namespace=self._namespace,
                worker_instance_key=self.key,
                session_id=self.session_id,
                request_id=request_id,
                lines=lines,
                next=after,
            ),
            metadata=self._metadata,
        )
