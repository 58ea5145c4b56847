"""Counters of components and progress of units are exact though nodes are killed with -9 again and again, whatever is sent twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from liveness.v1.progress_service_pb2 import GetProgressRequest, ReportProgressRequest, UnitProgress
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.registry_pb2 import RegistryEntry
from liveness.v1.registry_service_pb2 import GetEntryRequest, HeartbeatRequest, RegisterRequest
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from tests.databases import PostgresServer
from tests.system.server.server_process import ServerProcess

T = TypeVar("T")
NAMESPACE = "counts"
COMPONENTS = 4
HEARTBEATS = 40
UNITS = ("table-1", "table-2")
TRY_S = 2.0
LIMIT_S = 180
# Killed after so many answers, of twice as many as there are heartbeats.
KILLS_AFTER = (60, 140, 220)


class Fleet:
    """Components that count, and send again what was not answered, to whichever node answers."""

    def __init__(self, nodes: list[ServerProcess]) -> None:
        self.nodes = nodes
        self.successes: Counter[str] = Counter()
        """By component and unit, like errors."""
        self.errors: Counter[str] = Counter()
        self.answers = 0
        self.tries = 0
        self._answered = asyncio.Condition()

    async def call(self, call: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
        """Until it is answered."""
        while True:
            self.tries += 1
            node = self.nodes[self.tries % len(self.nodes)]
            try:
                if node.running and node.address:
                    async with asyncio.timeout(TRY_S):
                        return await call(node.channel)
            except grpc.aio.AioRpcError as error:
                if error.code() not in (
                    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED,
                ):  # fmt: skip
                    raise
            except (TimeoutError, grpc.aio.UsageError):
                pass
            await asyncio.sleep(0.02)

    async def answered(self, count: int) -> None:
        async with self._answered:
            await self._answered.wait_for(lambda: self.answers >= count)

    async def _note_answers(self, count: int) -> None:
        async with self._answered:
            self.answers += count
            self._answered.notify_all()

    async def run_component(self, number: int) -> None:
        key, chance = f"worker_pool:pool-{number}", random.Random(number)
        register = RegisterRequest(namespace=NAMESPACE, worker_instance_key=key, session_id=f"host:{number}")
        register.lease_duration.FromSeconds(600)
        await self.call(lambda channel: RegistryServiceStub(channel).Register(register))
        earlier: list[HeartbeatRequest | ReportProgressRequest] = []
        for sequence in range(1, HEARTBEATS + 1):
            beat = HeartbeatRequest(
                namespace=NAMESPACE, worker_instance_key=key, session_id=f"host:{number}", sequence=sequence,
                successes=chance.randrange(4), errors=chance.randrange(2),
            )  # fmt: skip
            report = ReportProgressRequest(
                namespace=NAMESPACE, worker_instance_key=key, unit=chance.choice(UNITS), successes=chance.randrange(4),
                error=chance.choice(["", "boo"]), report_id=f"{number}:{sequence}",
            )  # fmt: skip
            late = chance.choice(earlier) if earlier and chance.random() < 0.2 else None
            await asyncio.gather(*(self._send(each) for each in (beat, beat, report, report, late) if each))
            earlier = [*earlier, beat, report][-10:]
            self.successes[key] += beat.successes
            self.errors[key] += beat.errors
            self.successes[report.unit] += report.successes
            self.errors[report.unit] += bool(report.error)
            await self._note_answers(2)

    async def _send(self, request: Any) -> None:
        """Of a heartbeat, `STALE_HEARTBEAT` is an answer, too: a later one was counted."""
        try:
            if isinstance(request, HeartbeatRequest):
                await self.call(lambda channel: RegistryServiceStub(channel).Heartbeat(request))
            else:
                await self.call(lambda channel: ProgressServiceStub(channel).ReportProgress(request))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise

    async def assert_counts(self) -> None:
        for key in self.successes:
            found = await (self._unit(key) if key in UNITS else self._entry(key))
            assert (key, found.successes, found.errors) == (key, self.successes[key], self.errors[key])

    async def _unit(self, unit: str) -> UnitProgress:
        request = GetProgressRequest(namespace=NAMESPACE, unit=unit)
        answer = await self.call(lambda channel: ProgressServiceStub(channel).GetProgress(request))
        return answer.progress

    async def _entry(self, key: str) -> RegistryEntry:
        request = GetEntryRequest(namespace=NAMESPACE, worker_instance_key=key)
        answer = await self.call(lambda channel: RegistryServiceStub(channel).GetEntry(request))
        assert answer.entry.lease_epoch == 1
        return answer.entry


@pytest.fixture(params=["sqlite", "postgresql", "two nodes"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[ServerProcess]]:
    if request.param == "sqlite":
        nodes = [ServerProcess(f"sqlite:///{tmp_path / 'liveness.db'}")]
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(request.getfixturevalue("postgres_database"))
        flags = ["--cluster-listen", "127.0.0.1:0"] if request.param == "two nodes" else []
        nodes = [ServerProcess(url, flags=flags) for _ in range(2 if flags else 1)]
    yield nodes
    for node in nodes:
        await node.close()


async def kill_now_and_then(fleet: Fleet, kills_after: Iterable[int]) -> None:
    for number, answers in enumerate(kills_after):
        await fleet.answered(answers)
        node = fleet.nodes[number % len(fleet.nodes)]
        await node.kill()
        await node.start()


@pytest.mark.timeout(LIMIT_S + 60)
async def test_counts_are_exact_though_nodes_are_killed(nodes: list[ServerProcess]) -> None:
    for node in nodes:
        await node.start()
    fleet = Fleet(nodes)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_now_and_then(fleet, KILLS_AFTER))
        for number in range(COMPONENTS):
            tasks.create_task(fleet.run_component(number))
    assert fleet.answers == 2 * COMPONENTS * HEARTBEATS
    await fleet.assert_counts()
