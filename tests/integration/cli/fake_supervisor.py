"""A supervisor without processes: it reports components over gRPC, and carries orders out by reporting what they ask for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.clock import SystemClock
from liveness.domain.component import component_id, supervisor_key
from liveness.v1 import component_pb2 as pb
from liveness.v1.component_service_pb2 import (
    PollComponentOrdersRequest,
    PollComponentOrdersResponse,
    ReportComponentRequest,
    SendComponentLogsRequest,
)
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat

STARTING = pb.COMPONENT_STATUS_STARTING
HEALTHY = pb.COMPONENT_STATUS_HEALTHY
PAUSED = pb.COMPONENT_STATUS_PAUSED
STOPPING = pb.COMPONENT_STATUS_STOPPING
STOPPED = pb.COMPONENT_STATUS_STOPPED
CRASHED = pb.COMPONENT_STATUS_CRASHED
FAILED = pb.COMPONENT_STATUS_FAILED
RUNNING = (STARTING, HEALTHY, PAUSED, STOPPING)

LEASE_S = 300
_sessions = count(1)


def now(seconds_ago: float = 0) -> Timestamp:
    ms = SystemClock().wall_ms() - round(seconds_ago * 1_000)
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


class FakeSupervisor:
    """Use it as a context manager. While it is open, it polls for orders and answers requests for output."""

    def __init__(self, address: str, group: str = "discovery", namespace: str = "default") -> None:
        self.group = group
        self.namespace = namespace
        self.orders: list[pb.ComponentOrder] = []
        self.output: dict[str, list[str]] = {}
        """What the components wrote, by id."""
        self.fails_on_start = False
        """Whether a started component goes on to CRASHED and FAILED."""
        self.carries_out = True
        self._key = supervisor_key(group)
        self._session = f"supervisor-{next(_sessions)}"
        self._channel = grpc.insecure_channel(address)
        self._workers = LivenessServiceStub(self._channel)
        self._service = ComponentServiceStub(self._channel)
        self._reports: dict[str, ReportComponentRequest] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeSupervisor:
        self._beat(self._key, self._session, host_name="atlas", process_id="4711", only_if_free=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._channel.close()
        self._thread.join(timeout=60)

    # -- what it reports

    def start(self, index: int, *, seconds_ago: float = 0, **fields: Any) -> str:
        """Start a component in a new session, up to HEALTHY. Returns its id."""
        id = component_id(self.group, index)
        session = f"process-{next(_sessions)}"
        self._beat(id, session, host_name="atlas", new_incarnation=True, current_job=fields.pop("job", ""))
        begun: dict[str, Any] = {
            "session_id": session,
            "process_id": 5_000 + index,
            "process_start_time": now(seconds_ago),
            **fields,
        }
        self.report(id, STARTING, **begun)
        self.report(id, HEALTHY, **begun)
        return id

    def report(self, id: str, status: pb.ComponentStatus.ValueType, **fields: Any) -> None:
        """Report a status; facts stay as they were before, except those that a status without a process ends."""
        last = self._reports.get(id)
        request = ReportComponentRequest(
            namespace=self.namespace, worker_instance_key=id, session_id=f"process-{id}", wanted=True
        )
        if last is not None:
            request.CopyFrom(last)
            request.reason = request.by = ""
        request.number += 1
        if status not in RUNNING:
            request.process_id = 0
        changes = ReportComponentRequest(status=status, time=now(), **fields)
        if "restart_times" in fields:
            del request.restart_times[:]
        request.MergeFrom(changes)
        if "paused" in fields:
            request.paused = fields["paused"]
        if "wanted" in fields:
            request.wanted = fields["wanted"]
        if "restart_count" in fields:
            request.restart_count = fields["restart_count"]
        self._service.ReportComponent(request, timeout=60)
        self._reports[id] = request

    def crash(self, id: str, *lines: str, code: int = 3, fail: bool = False, **fields: Any) -> None:
        ended = pb.ProcessExit(code=code, time=now(), last_lines=lines)
        self.report(id, CRASHED, last_exit=ended, **{"reason": f"exit code {code}", **fields})
        if fail:
            self.report(id, FAILED, reason="5 restarts within 5 minutes")

    def _beat(self, key: str, session: str, **fields: Any) -> None:
        heartbeat = WorkerHeartbeat(
            worker_instance_key=key, session_id=session, lease_duration=Duration(seconds=LEASE_S), **fields
        )
        request = RecordWorkerHeartbeatRequest(namespace=self.namespace, heartbeat=heartbeat)
        self._workers.RecordWorkerHeartbeat(request, timeout=60)

    # -- what it is told

    def _run(self) -> None:
        done, known = 0, 0
        while not self._ended.is_set():
            request = PollComponentOrdersRequest(
                namespace=self.namespace,
                worker_instance_key=self._key,
                session_id=self._session,
                done_through=done,
                known_through=known,
            )
            try:
                answer = self._service.PollComponentOrders(request, timeout=60)
                for order in answer.orders:
                    known = order.number
                    self.orders.append(order)
                    if self.carries_out:
                        self._carry_out(order)
                        done = order.number
                self._send_output(answer.log_requests)
            except grpc.RpcError as error:
                if self._ended.is_set() or error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    return  # the channel was closed, or the lease has ended
                raise
            except ValueError:
                return  # the channel was closed before the call

    def _send_output(self, requests: Sequence[PollComponentOrdersResponse.LogRequest]) -> None:
        for request in requests:
            lines = self.output.get(request.component_id, [])
            wanted = lines[int(request.after) :] if request.after else lines[-request.lines :]
            self._service.SendComponentLogs(
                SendComponentLogsRequest(
                    namespace=self.namespace,
                    worker_instance_key=self._key,
                    session_id=self._session,
                    request_id=request.request_id,
                    lines=wanted,
                    next=str(len(lines)),
                ),
                timeout=60,
            )

    def _carry_out(self, order: pb.ComponentOrder) -> None:
        facts: dict[str, Any] = {"reason": order.reason or "ordered", "by": order.by}
        if order.action == pb.COMPONENT_ACTION_SCALE:
            for index in range(order.count):
                if component_id(self.group, index) not in self._reports:
                    self.start(index, **facts)
            return
        for id in order.component_ids or tuple(self._reports):
            self._carry_out_one(order.action, id, facts)

    def _carry_out_one(self, action: pb.ComponentAction.ValueType, id: str, facts: dict[str, Any]) -> None:
        status = self._reports[id].status
        runs = status in RUNNING
        if action == pb.COMPONENT_ACTION_PAUSE:
            self.report(id, PAUSED, paused=True, **facts)
        elif action == pb.COMPONENT_ACTION_RESUME:
            self.report(id, HEALTHY, paused=False, **facts)
        if action in (
            pb.COMPONENT_ACTION_STOP,
            pb.COMPONENT_ACTION_RESTART,
            pb.COMPONENT_ACTION_ROLLING_RESTART,
        ):
            wanted = action != pb.COMPONENT_ACTION_STOP
            if runs:
                self.report(id, STOPPING, wanted=wanted, **facts)
                self.report(id, STOPPED, wanted=wanted, last_exit=pb.ProcessExit(code=0, time=now()), **facts)
        if action in (pb.COMPONENT_ACTION_RESTART, pb.COMPONENT_ACTION_ROLLING_RESTART) or (
            action in (pb.COMPONENT_ACTION_START, pb.COMPONENT_ACTION_RESET) and not runs
        ):
            restarts = 0 if action == pb.COMPONENT_ACTION_RESET else self._reports[id].restart_count + 1
            self.start(int(id.rpartition(":")[2]), wanted=True, restart_count=restarts, **facts)
            if self.fails_on_start:
                self.crash(id, "no such application", fail=True)
