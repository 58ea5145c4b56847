"""Workers that only send heartbeats, over one channel, and repeat each until it is answered."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import grpc

from liveness.v1 import service_pb2, service_pb2_grpc, worker_pb2

NAMESPACE = "steady"
INTERVAL_S = 0.3
CALL_SECONDS_MAX = 3.0
RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class SteadyWorkers:
    """Runs while the context is open."""

    def __init__(
        self,
        name: str,
        channel: grpc.aio.Channel,
        *,
        count: int = 8,
        lease_ms: int = 3_000,
        call_seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        self.keys = [f"{name}-{number}" for number in range(count)]
        self._stub = service_pb2_grpc.LivenessServiceStub(channel)
        self._lease_ms = lease_ms
        self._call_seconds_max = call_seconds_max
        self._tasks: list[asyncio.Task[None]] = []
        self._answered_at: dict[str, float] = {}
        self._answered = asyncio.Event()
        self.slowest_turn_s = 0.0
        """How late this process was with a heartbeat; if it stalled itself, a lost lease proves nothing."""
        self.errors: list[str] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._beat(key)) for key in self.keys]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def all_answered(self, seconds_max: float = 60) -> float:
        """Wait until each worker has got an answer that was given after this call. Returns the seconds that it took."""
        began = time.monotonic()
        async with asyncio.timeout(seconds_max):
            while any(self._answered_at.get(key, 0.0) < began for key in self.keys):
                for task in self._tasks:
                    assert not task.done(), task.exception()
                self._answered.clear()
                await self._answered.wait()
        return time.monotonic() - began

    async def lost_leases(self, stub: service_pb2_grpc.LivenessServiceAsyncStub) -> list[str]:
        """Return the workers that did not keep the lease with which they began."""
        lost = []
        for key in self.keys:
            answer = await stub.DescribeWorker(
                service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
            )
            if (answer.worker.state, answer.worker.lease_epoch) != (worker_pb2.WORKER_STATE_ACTIVE, 1):
                lost.append(f"{key}: {answer.worker.state}, epoch {answer.worker.lease_epoch}")
        return lost

    async def _beat(self, key: str) -> None:
        sequence = 0
        while True:
            sequence += 1
            request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE)
            request.heartbeat.worker_instance_key = key
            request.heartbeat.session_id = f"session-{key}"
            request.heartbeat.sequence = sequence
            request.heartbeat.lease_duration.FromMilliseconds(self._lease_ms)
            while not await self._send(request):
                await asyncio.sleep(0.05)
            self._answered_at[key] = due = time.monotonic()
            self._answered.set()
            await asyncio.sleep(INTERVAL_S)
            self.slowest_turn_s = max(self.slowest_turn_s, time.monotonic() - due - INTERVAL_S)

    async def _send(self, request: service_pb2.RecordWorkerHeartbeatRequest) -> bool:
        try:
            await self._stub.RecordWorkerHeartbeat(request, timeout=self._call_seconds_max)
        except grpc.aio.AioRpcError as error:
            self.errors.append(f"{error.code().name}: {error.details()}")
            if error.code() not in RETRYABLE:
                raise
            return False
        return True
