"""Every call that reaches a server that stops is served, refused with SHUTTING_DOWN, or left to be sent elsewhere."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from signal import SIGTERM

import grpc
import pytest

from liveness.rpc_details import details_from_trailer
from liveness.server.edge_listener import edge_is_installed
from liveness.v1 import service_pb2, service_pb2_grpc
from tests.system.server.crash_loop import ReportResult
from tests.system.server.server_process import ServerProcess

CALLS = 1_000
"""Calls that are served before each stop."""
SHUTTING_DOWN = ("UNAVAILABLE", "SHUTTING_DOWN")
NOBODY_LISTENS = ("UNAVAILABLE", "")
"""Also what a client says of a call that the server did not read, after it has tried to send it again."""


class Clients:
    """Each sends heartbeats until nobody answers: the next one when the last was answered and its pause is over."""

    def __init__(self, address: str, *, clients: int, connections: int, pause_s: float) -> None:
        # Without the option all channels would share a connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
        self._clients = clients
        self._pause_s = pause_s
        self.served = 0
        self.refused: Counter[tuple[str, str]] = Counter()
        self.busy = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*map(self._beat, range(self._clients)))
        for channel in self._channels:
            await channel.close()

    async def _beat(self, number: int) -> None:
        stub = service_pb2_grpc.LivenessServiceStub(self._channels[number % len(self._channels)])
        request = service_pb2.RecordWorkerHeartbeatRequest(namespace="stops")
        request.heartbeat.worker_instance_key = f"worker-{number}"
        outcome = ("OK", "")
        while outcome != NOBODY_LISTENS:
            try:
                await stub.RecordWorkerHeartbeat(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                details = details_from_trailer(error.code(), error.trailing_metadata())
                outcome = error.code().name, details.reason
                self.refused[outcome] += 1
            else:
                self.served += 1
                if self.served == CALLS:
                    self.busy.set()
            await asyncio.sleep(random.uniform(0, 2 * self._pause_s))


@pytest.mark.parametrize(
    ("clients", "connections", "pause_s", "stops"),
    [
        pytest.param(120, 6, 0, 2, id="without a pause"),
        pytest.param(400, 1, 0.5, 3, id="paced, over one connection"),
        pytest.param(400, 200, 0.5, 3, id="paced, over many connections"),
    ],
)
async def test_calls_that_reach_a_server_that_stops_get_an_answer(
    tmp_path: Path, report_result: ReportResult, clients: int, connections: int, pause_s: float, stops: int
) -> None:
    refused: Counter[tuple[str, str]] = Counter()
    for stop in range(stops):
        server = ServerProcess(f"sqlite:///{tmp_path}/{stop}.db")
        try:
            await server.start()
            fleet = Clients(server.address, clients=clients, connections=connections, pause_s=pause_s)
            running = asyncio.create_task(fleet.run())
            await fleet.busy.wait()
            assert await server.end(SIGTERM) == 0, server.log_text()
            await running
        finally:
            await server.close()
        refused += fleet.refused
    report_result(f"{stops} stops: {dict(refused)}")
    assert refused.keys() <= {SHUTTING_DOWN, NOBODY_LISTENS}
    # The edge reads no further call when the server stops: its clients are sent elsewhere without a refusal.
    assert (refused[SHUTTING_DOWN] > 0) is not edge_is_installed()
