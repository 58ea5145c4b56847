"""A user's database, a liveness, and a follower between them whose turns the test takes one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest

from liveness.clock import ManualClock
from liveness.doors.pgai import installation
from liveness.doors.pgai.follower import PgaiFollower
from liveness.doors.pgai.settings import FollowerSettings
from liveness.testing import LocalServer
from liveness.v1.admin_pb2 import UpdateConfigRequest
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.progress_service_pb2 import GetProgressRequest, ListProgressRequest, UnitProgress
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.service_pb2 import DescribeWorkerRequest, ListWorkersRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker
from tests.databases import PostgresServer

NAMESPACE = "pgai"
TURN_MS = 500


class TickingClock(ManualClock):
    """Time also passes each time that somebody looks at it."""

    tick_ms = 0

    def monotonic_ms(self) -> int:
        if self.tick_ms:
            self.move(self.tick_ms)
        return super().monotonic_ms()


class Stage:
    def __init__(self, local: LocalServer, dsn: str) -> None:
        self.local = local
        self.dsn = dsn
        self.clock = TickingClock()
        self.follower = self.new_follower()
        self._channel = grpc.insecure_channel(local.address)
        self.liveness = LivenessServiceStub(self._channel)
        self.progress_service = ProgressServiceStub(self._channel)
        self._connections: list[asyncpg.Connection] = []
        self._abandoned: list[PgaiFollower] = []

    def new_follower(self, **settings: Any) -> PgaiFollower:
        return PgaiFollower(
            FollowerSettings(dsn=self.dsn, liveness=(self.local.address,), namespace=NAMESPACE, **settings),
            self.clock,
        )

    async def close(self) -> None:
        for connection in self._connections:
            connection.terminate()
        for follower in (self.follower, *self._abandoned):
            await follower.stop()
        self._channel.close()

    # -- the worker's side

    async def connect(self, application_name: str = "test") -> asyncpg.Connection:
        connection = await asyncpg.connect(self.dsn, server_settings={"application_name": application_name})
        self._connections.append(connection)
        return connection

    async def run(self, statement: str, *values: object) -> Any:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(statement, *values)
        finally:
            await connection.close()

    async def start_worker(self, interval: str = "10 seconds") -> str:
        id: UUID = await self.run(f"SELECT ai._worker_start('0.12.1', '{interval}')")
        return str(id)

    async def beat(self, id: str, successes: int = 0, errors: int = 0, error: str | None = None) -> None:
        await self.run("SELECT ai._worker_heartbeat($1, $2, $3, $4)", id, successes, errors, error)

    async def progress(self, id: str, unit: int, successes: int, error: str | None = None) -> None:
        await self.run("SELECT ai._worker_progress($1, $2, $3, $4)", id, unit, successes, error)

    async def heartbeat_session(self, id: str) -> asyncpg.Connection:
        return await self.connect(f"pgai-worker-heartbeat: {id.partition('-')[0]}")

    # -- the follower's side

    async def turn(self, times: int = 1, ms: int = TURN_MS) -> None:
        """Let time pass, for liveness and the follower alike, and let the follower take its turn."""
        for _ in range(times):
            self.clock.move(ms)
            await asyncio.to_thread(self.local.advance, ms / 1_000)
            await self.follower.turn()

    async def replace_follower(self, *, orderly: bool = True) -> None:
        if orderly:
            await self.follower.stop()
        else:
            self._abandoned.append(self.follower)
        self.follower = self.new_follower()

    def describe(self, id: str) -> Worker:
        request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=id)
        return self.liveness.DescribeWorker(request).worker

    def state(self, id: str) -> str:
        return "ACTIVE" if self.describe(id).state == 1 else self.describe(id).inactive_detail or "INACTIVE"

    def counts(self, id: str) -> tuple[int, int]:
        worker = self.describe(id)
        return worker.successes, worker.errors

    def worker_keys(self) -> set[str]:
        workers = self.liveness.ListWorkers(ListWorkersRequest(namespace=NAMESPACE)).workers
        return {worker.worker_instance_key for worker in workers}

    def clean_up_after(self, seconds: int) -> None:
        """Set how long an INACTIVE worker may return before it is cleaned up."""
        request = UpdateConfigRequest(namespace=NAMESPACE)
        request.set.cleanup_delay.FromSeconds(seconds)
        AdminServiceStub(self._channel).UpdateConfig(request)

    def units(self) -> list[UnitProgress]:
        return list(
            self.progress_service.ListProgress(
                ListProgressRequest(namespace=NAMESPACE, page_size=1_000)
            ).units
        )

    def failing_units(self) -> list[UnitProgress]:
        request = ListProgressRequest(namespace=NAMESPACE, failing=True)
        return list(self.progress_service.ListProgress(request).units)

    def unit(self, unit: str) -> UnitProgress:
        return self.progress_service.GetProgress(GetProgressRequest(namespace=NAMESPACE, unit=unit)).progress


@pytest.fixture
def dsn(postgres: PostgresServer, postgres_database: str) -> str:
    return postgres.url(postgres_database)


@pytest.fixture
async def stage(dsn: str, tmp_path: Path) -> AsyncIterator[Stage]:
    await installation.install(dsn)
    with LocalServer(tmp_path) as local:
        stage = Stage(local, dsn)
        try:
            yield stage
        finally:
            await stage.close()
