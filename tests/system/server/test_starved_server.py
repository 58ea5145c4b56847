"""A server that gets too little processor time hears late what has arrived in time, and must not end a lease meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from liveness.server.edge_listener import edge_is_installed
from liveness.v1 import service_pb2, worker_pb2
from tests.databases import PostgresServer
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.ledger import NAMESPACE
from tests.system.server.server_process import ServerProcess

WORKERS = 200
LEASE_S = 2.0
INTERVAL_S = 0.5
SECONDS = 4.0
BUSY_LOOPS = 16
BUSY_LOOPS_BESIDE_EDGE = 64
"""On SQLite, a server with the native edge needs so little processor time that fewer would leave it enough."""
CLIENT_DELAY_S = 0.5
"""Heartbeats that left this process so shortly before the end of a lease prove nothing: the process may be slow as well."""


@contextmanager
def starved(server: ServerProcess, busy_loops: int) -> Iterator[None]:
    """Share one core between the server and busy loops, and leave the others to this process."""
    cores = sorted(os.sched_getaffinity(0))
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores[:1])
    loop = f"import os\nos.sched_setaffinity(0, {cores[:1]})\nwhile os.getppid() == {os.getpid()}: sum(range(99_999))"
    loops = [subprocess.Popen([sys.executable, "-I", "-S", "-c", loop]) for _ in range(busy_loops)]
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in loops:
            process.kill()
        for process in loops:
            process.wait()


class SteadyWorker:
    """Sends a heartbeat at regular intervals, or as soon as the one before is answered."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        self._server = server
        self.key = f"steady-{number}"
        self.answers = 0
        self.latency_s_max = 0.0
        self.wronged: list[str] = []
        """Leases that ended although the next heartbeat was sent in time."""

    async def run(self, until: float) -> None:
        sent_before, sequence = time.monotonic(), 0
        while (sent := time.monotonic()) < until:
            sequence += 1
            beat = worker_pb2.WorkerHeartbeat(
                worker_instance_key=self.key, session_id=f"{self.key}-session", sequence=sequence
            )
            beat.lease_duration.FromMilliseconds(int(LEASE_S * 1_000))
            result = await self._server.liveness.RecordWorkerHeartbeat(
                service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat)
            )
            self.answers += 1
            self.latency_s_max = max(self.latency_s_max, time.monotonic() - sent)
            # The lease was granted when the server heard the heartbeat before, and that was not before it was sent.
            if (
                result.outcome == worker_pb2.HEARTBEAT_OUTCOME_RESURRECTED
                and sent - sent_before < LEASE_S - CLIENT_DELAY_S
            ):
                self.wronged.append(
                    f"{self.key}: sent {sent - sent_before:.2f} s after the one before, "
                    f"answered after {time.monotonic() - sent:.2f} s"
                )
            sent_before = sent
            await asyncio.sleep(max(0.0, sent + INTERVAL_S - time.monotonic()))


@pytest.fixture
def database_url(dialect: str, request: pytest.FixtureRequest, sqlite_url: str) -> str:
    if dialect == "sqlite":
        return sqlite_url
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.url(request.getfixturevalue("postgres_database"))


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs a core for the server and one for its clients"
)
async def test_a_starved_server_ends_no_lease_whose_heartbeat_waits_in_its_sockets(
    make_server: MakeServer, database_url: str, dialect: str
) -> None:
    server = make_server(database_url, environ=NO_TAKEOVER_GRACE)
    await server.start()
    workers = [SteadyWorker(server, number) for number in range(WORKERS)]
    is_light = dialect == "sqlite" and edge_is_installed()
    with starved(server, BUSY_LOOPS_BESIDE_EDGE if is_light else BUSY_LOOPS):
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(worker.run(until) for worker in workers))
    latency_s_max = max(worker.latency_s_max for worker in workers)
    wronged = [text for worker in workers for text in worker.wronged]
    assert latency_s_max > LEASE_S / 4, "the server was not starved, so this run proves nothing"
    assert not wronged, f"{len(wronged)} leases, for example {wronged[:3]}"
