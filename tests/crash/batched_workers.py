"""Thousands of workers in this process, which send their heartbeats in batches, as a frontend does."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from liveness.v1 import service_pb2, worker_pb2
from tests.system.server.ledger import NAMESPACE, activity_ref
from tests.system.server.server_process import ServerProcess

BATCH = 500
CALLS_AT_ONCE = 4
TASK_QUEUE = "queue"


class BatchedWorkers:
    def __init__(self, server: ServerProcess, lease_ms: int) -> None:
        self._server = server
        self._lease_ms = lease_ms
        self._sequences: Counter[int] = Counter()
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self.latencies_s: list[float] = []
        """Of each answered call."""
        self.outcomes: dict[int, int] = {}
        """The last outcome of each worker, by its number."""

    async def beat(self, numbers: Iterable[int], *, binding: bool = False) -> Counter[int]:
        """Send one heartbeat for each of these workers, and return the outcomes."""
        everybody = list(numbers)
        batches = [everybody[start : start + BATCH] for start in range(0, len(everybody), BATCH)]
        answers = await asyncio.gather(*(self._beat(batch, binding) for batch in batches))
        return sum(answers, Counter[int]())

    async def _beat(self, numbers: Sequence[int], binding: bool) -> Counter[int]:
        async with self._calls:
            request = service_pb2.RecordWorkerHeartbeatsRequest(
                namespace=NAMESPACE, heartbeats=[self._message(number, binding) for number in numbers]
            )
            began = time.monotonic()
            response = await self._server.liveness.RecordWorkerHeartbeats(request)
            self.latencies_s.append(time.monotonic() - began)
        for number, item in zip(numbers, response.items, strict=True):
            assert item.HasField("result"), f"{name(number)} was refused: {item.status}"
            self.outcomes[number] = item.result.outcome
        return Counter(item.result.outcome for item in response.items)

    def _message(self, number: int, binding: bool) -> worker_pb2.WorkerHeartbeat:
        self._sequences[number] += 1
        beat = worker_pb2.WorkerHeartbeat(
            worker_instance_key=name(number),
            session_id=f"{name(number)}-session",
            sequence=self._sequences[number],
            task_queue=TASK_QUEUE,
            bound_activities=[activity_ref(f"{name(number)}/activity")] if binding else [],
        )
        beat.lease_duration.FromMilliseconds(self._lease_ms)
        return beat


def name(number: int) -> str:
    return f"worker-{number:05d}"
