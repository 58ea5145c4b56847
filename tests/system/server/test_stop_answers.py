"""Every call that waits for its answer when the server stops is served, or refused with SHUTTING_DOWN."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from signal import SIGTERM

import grpc

from liveness.rpc_details import details_from_trailer
from liveness.v1 import service_pb2, service_pb2_grpc
from tests.system.server.crash_loop import ReportResult
from tests.system.server.server_process import ServerProcess

CLIENTS, CHANNELS = 120, 6
STOPS = 2
CALLS = 1_000
"""Calls that are served before each stop."""


class Clients:
    """Each sends the next heartbeat as soon as the last one was answered, until it is refused or nobody answers."""

    def __init__(self, address: str) -> None:
        # Without the option all channels would share a connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self.served = 0
        self.refused: Counter[tuple[str, str]] = Counter()
        self.busy = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*map(self._beat, range(CLIENTS)))
        for channel in self._channels:
            await channel.close()

    async def _beat(self, number: int) -> None:
        stub = service_pb2_grpc.LivenessServiceStub(self._channels[number % CHANNELS])
        request = service_pb2.RecordWorkerHeartbeatRequest(namespace="stops")
        request.heartbeat.worker_instance_key = f"worker-{number}"
        while True:
            try:
                await stub.RecordWorkerHeartbeat(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                details = details_from_trailer(error.code(), error.trailing_metadata())
                self.refused[error.code().name, details.reason] += 1
                return
            self.served += 1
            if self.served == CALLS:
                self.busy.set()


async def test_calls_in_flight_when_the_server_stops_get_an_answer(
    tmp_path: Path, report_result: ReportResult
) -> None:
    refused: Counter[tuple[str, str]] = Counter()
    for stop in range(STOPS):
        server = ServerProcess(f"sqlite:///{tmp_path}/{stop}.db")
        try:
            await server.start()
            clients = Clients(server.address)
            running = asyncio.create_task(clients.run())
            await clients.busy.wait()
            assert await server.end(SIGTERM) == 0, server.log_text()
            await running
        finally:
            await server.close()
        refused += clients.refused
    report_result(f"{STOPS} stops: {dict(refused)}")
    # A client that this process did not let run in time finds nobody listening.
    assert refused.keys() <= {("UNAVAILABLE", "SHUTTING_DOWN"), ("UNAVAILABLE", "")}
    assert refused["UNAVAILABLE", "SHUTTING_DOWN"] > 0
