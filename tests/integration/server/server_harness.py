"""A real server on a real database with a real gRPC client, on a manual clock."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from sqlalchemy import Connection, select

import liveness.app
from liveness.store.database import Database
from liveness.store.postgres import PostgresDatabase
from liveness.store.schema import metadata
from liveness.store.sqlite import SqliteDatabase
from liveness.tasks.sinks import Sink
from liveness.testing import ManualClock, Server, Settings
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.free_ports import next_node_port
from tests.integration.engine.engine import duration
from tests.integration.store.faulty_store import FaultyStore

NAMESPACE = "orders"
SHARDS = 8

ACTIVE = worker_pb2.WORKER_STATE_ACTIVE
INACTIVE = worker_pb2.WORKER_STATE_INACTIVE
CLEANED_UP = worker_pb2.WORKER_STATE_CLEANED_UP
REGISTERED = worker_pb2.HEARTBEAT_OUTCOME_REGISTERED
RENEWED = worker_pb2.HEARTBEAT_OUTCOME_RENEWED
REPEATED = worker_pb2.HEARTBEAT_OUTCOME_REPEATED
SESSION_REPLACED = worker_pb2.HEARTBEAT_OUTCOME_SESSION_REPLACED
RESURRECTED = worker_pb2.HEARTBEAT_OUTCOME_RESURRECTED

Dump = dict[str, list[tuple[Any, ...]]]


class Refusal(NamedTuple):
    """The unpacked status of a refused call."""

    code: grpc.StatusCode
    reason: str
    message: str
    fields: dict[str, str]
    violations: list[tuple[str, str]]
    retry_ms: int | None


class ServerHarness:
    """One database, and the servers that run on it one after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.server: Server
        # Untyped, because tests send invalid values and raw bytes.
        self.channel: Any
        self.cluster_channel: Any
        self.liveness: Any
        self.admin: Any
        self.activities: Any
        self._running = False
        self._options: dict[str, Any] = {}
        self.store: FaultyStore | None = None

    async def start(
        self, *, sink: Sink | None = None, faulty: bool = False, **settings: Any
    ) -> ServerHarness:
        self._options = {"sink": sink, "faulty": faulty, **settings}
        values = {
            "shards": SHARDS,
            "cluster_listen": f"127.0.0.1:{0 if self.url.startswith('sqlite') else next_node_port()}",
            "commit_interval_ms": 0.0,
            "shutdown_timeout_s": 5.0,
            **settings,
        }
        self.server = Server(
            Settings(db=self.url, listen="127.0.0.1:0", **values),
            clock=self.clock,
            select_sink=None if sink is None else lambda namespace, task_queue: sink,
            self_driven=False,
        )
        with pytest.MonkeyPatch.context() as patch:
            if faulty:
                patch.setattr(liveness.app, "open_store", self._open_faulty)
            await self.server.start()
        self._running = True
        self.channel = grpc.aio.insecure_channel(
            self.server.address, options=[("grpc.max_receive_message_length", -1)]
        )
        self.cluster_channel = grpc.aio.insecure_channel(self.server.cluster_address or self.server.address)
        self.liveness = LivenessServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.activities = ActivityServiceStub(self.channel)
        return self

    def lift_rate_limits(self, namespace: str = NAMESPACE) -> None:
        """Let a worker send any number of heartbeats and change its session as often, while the clock stands still."""
        limits = {"worker_heartbeat_rate": 0.0, "worker_sessions_per_minute": 0.0}
        self.server.node.policies.replace(namespace, limits)

    def channel_for(self, path: str) -> Any:
        """The channel on which the method at this path is served."""
        return self.cluster_channel if path.startswith("/liveness.v1.ClusterService/") else self.channel

    async def _open_faulty(self, settings: Settings, *_: object) -> FaultyStore:
        self.store = FaultyStore(self._database())
        await self.store.open(settings.shards, "tests")
        return self.store

    async def stop(self) -> None:
        if self._running:
            self._running = False
            if self.store is not None:
                self.store.open_gate()  # a failed test may have left it closed
            await self.channel.close()
            await self.cluster_channel.close()
            await self.server.stop()

    async def restart(self, **changes: Any) -> None:
        await self.stop()
        await self.start(**{**self._options, **changes})

    async def advance(self, ms: int) -> None:
        await self.server.advance(ms)

    # -- calls

    async def beat(
        self, worker: str = "w", *, namespace: str = NAMESPACE, lease_ms: int | None = None, **fields: Any
    ) -> worker_pb2.HeartbeatResult:
        beat = heartbeat(worker, lease_ms=lease_ms, **fields)
        return await self.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=beat)
        )

    async def batch(
        self, *beats: worker_pb2.WorkerHeartbeat, namespace: str = NAMESPACE
    ) -> list[service_pb2.RecordWorkerHeartbeatsResponse.Item]:
        response = await self.liveness.RecordWorkerHeartbeats(
            service_pb2.RecordWorkerHeartbeatsRequest(namespace=namespace, heartbeats=beats)
        )
        return list(response.items)

    async def describe(self, worker: str = "w", namespace: str = NAMESPACE) -> worker_pb2.Worker:
        response = await self.liveness.DescribeWorker(
            service_pb2.DescribeWorkerRequest(namespace=namespace, worker_instance_key=worker)
        )
        return response.worker

    async def shut_down(
        self, worker: str = "w", namespace: str = NAMESPACE, **fields: Any
    ) -> service_pb2.ShutdownWorkerResponse:
        return await self.liveness.ShutdownWorker(
            service_pb2.ShutdownWorkerRequest(namespace=namespace, worker_instance_key=worker, **fields)
        )

    async def expire(self, worker: str = "w", namespace: str = NAMESPACE) -> admin_pb2.ExpireWorkerResponse:
        return await self.admin.ExpireWorker(
            admin_pb2.ExpireWorkerRequest(namespace=namespace, worker_instance_key=worker)
        )

    async def forget(
        self, worker: str = "w", namespace: str = NAMESPACE, reason: str = ""
    ) -> admin_pb2.ForgetWorkerResponse:
        return await self.admin.ForgetWorker(
            admin_pb2.ForgetWorkerRequest(namespace=namespace, worker_instance_key=worker, reason=reason)
        )

    async def listed(self, namespace: str = NAMESPACE, **fields: Any) -> service_pb2.ListWorkersResponse:
        return await self.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=namespace, **fields))

    async def count(self, namespace: str = NAMESPACE, **fields: Any) -> dict[int, int]:
        response = await self.liveness.CountWorkers(
            service_pb2.CountWorkersRequest(namespace=namespace, **fields)
        )
        assert response.total == sum(group.count for group in response.groups)
        return {group.state: group.count for group in response.groups}

    async def history(
        self, worker: str = "w", namespace: str = NAMESPACE, **fields: Any
    ) -> service_pb2.GetWorkerHistoryResponse:
        return await self.liveness.GetWorkerHistory(
            service_pb2.GetWorkerHistoryRequest(namespace=namespace, worker_instance_key=worker, **fields)
        )

    async def tasks(self, *states: Any, **fields: Any) -> list[admin_pb2.Task]:
        response = await self.admin.ListTasks(admin_pb2.ListTasksRequest(states=states, **fields))
        return list(response.tasks)

    async def configure(
        self, namespace: str = NAMESPACE, unset: Any = (), **values: Any
    ) -> admin_pb2.UpdateConfigResponse:
        """Update settings; durations are named NAME_ms."""
        return await self.admin.UpdateConfig(
            admin_pb2.UpdateConfigRequest(namespace=namespace, set=config(**values), unset=unset)
        )

    async def config(self, namespace: str = NAMESPACE) -> admin_pb2.GetConfigResponse:
        return await self.admin.GetConfig(admin_pb2.GetConfigRequest(namespace=namespace))

    # -- the database

    def _database(self) -> Database:
        if self.url.startswith("sqlite"):
            return SqliteDatabase(Path(self.url.removeprefix("sqlite:///")))
        return PostgresDatabase(self.url)

    async def dump(self, *without: str) -> Dump:
        """Return every row of every table for comparisons; `shards` contains the clock and changes by itself, and `audit`
        records refusals too."""

        def read(connection: Connection) -> Dump:
            return {
                table.name: [
                    tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
                ]
                for table in metadata.sorted_tables
                if table.name not in without
            }

        database = self._database()
        try:
            return await database.read(read)
        finally:
            await database.close()


def heartbeat(worker: str = "w", *, lease_ms: int | None = None, **fields: Any) -> worker_pb2.WorkerHeartbeat:
    beat = worker_pb2.WorkerHeartbeat(worker_instance_key=worker, **fields)
    if lease_ms is not None:
        beat.lease_duration.CopyFrom(duration(lease_ms))
    return beat


def config(**values: float) -> admin_pb2.NamespaceConfig:
    message = admin_pb2.NamespaceConfig()
    for name, value in values.items():
        if name.endswith("_ms"):
            getattr(message, name.removesuffix("_ms")).CopyFrom(duration(int(value)))
        else:
            setattr(message, name, value)
    return message


async def refusal(call: Awaitable[Any]) -> Refusal:
    """Await a call that must be refused, and return the refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return unpack(raised.value)


def unpack(error: grpc.aio.AioRpcError) -> Refusal:
    status = Status()
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            status.ParseFromString(value)
    return unpack_status(status)._replace(code=error.code(), message=error.details() or "")


def unpack_status(status: Status) -> Refusal:
    info, bad, retry = ErrorInfo(), BadRequest(), None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
        hint = RetryInfo()
        if detail.Unpack(hint):
            retry = hint.retry_delay.ToMilliseconds()
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    violations = [(violation.field, violation.description) for violation in bad.field_violations]
    return Refusal(code, info.reason, status.message, dict(info.metadata), violations, retry)
