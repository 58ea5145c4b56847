"""Workers in this process that send heartbeats, run activities, restart, shut down and fall silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from types import TracebackType
from typing import Self, TypeVar

import grpc

from liveness.v1 import service_pb2, worker_pb2
from tests.system.server.ledger import NAMESPACE, NOTHING, Beat, Ledger, View
from tests.system.server.server_process import ServerLike

R = TypeVar("R")
T = TypeVar("T")

CALL_SECONDS_MAX = 60
HELD_MAX = 12
UNANSWERED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


class LoadWorker:
    """Chooses the content of its next heartbeat, and repeats a heartbeat until it is answered, as a client should."""

    def __init__(self, key: str, lease_ms: int, ledger: Ledger, random: Random) -> None:
        self.key = key
        self.lease_ms = lease_ms
        self.unanswered: Beat | None = None
        self._ledger = ledger
        self._random = random
        self._sessions = count(1)
        self._session = self._next_session()
        self._activities = count(1)

    def _next_session(self) -> str:
        return f"{self.key}-session-{next(self._sessions)}"

    def next_beat(self) -> Beat:
        if self.unanswered is None:
            self.unanswered = self._compose(self._ledger.view(self.key))
        return self.unanswered

    def _compose(self, view: View | None) -> Beat:
        bound = self._taken_up()
        if view is None:
            return Beat(self.key, self._session, 1, self.lease_ms, bound)
        if self._random.random() < 0.02:
            # The process was restarted and keeps some of its activities.
            self._session = self._next_session()
            kept = frozenset(name for name in view.bindings if self._random.random() < 0.5)
            return Beat(self.key, self._session, 1, self.lease_ms, bound | kept)
        finished = frozenset(
            name for name in sorted(view.bindings)
            if self._random.random() < (0.1 if len(view.bindings) < HELD_MAX else 0.5)
        )  # fmt: skip
        if self._random.random() < 0.4:
            bound = finished = NOTHING
        return Beat(
            self.key, self._session, view.sequence + 1, self.lease_ms, bound, finished | view.cancelled
        )

    def _taken_up(self) -> frozenset[str]:
        return frozenset(f"{self.key}/{next(self._activities)}" for _ in range(self._random.randrange(4)))


class Load:
    """Runs while the context is open. `pause` and `wait_idle` give a moment in which no call is under way."""

    def __init__(
        self,
        server: ServerLike,
        ledger: Ledger,
        random: Random,
        *,
        unary: int = 16,
        batches: int = 2,
        batch_size: int = 10,
        short_lived: int = 8,
        leases_ms: Sequence[int] = (1_500, 2_500),
        short_lived_lease_ms: int = 1_000,
        pace_s: float = 0.04,
        goodbyes: bool = True,
        call_seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        """`goodbyes` must be off where a call may arrive long after its caller repeated it: unlike heartbeats, shutdowns
        have no sequence.
        """
        self._server = server
        self._ledger = ledger
        self._random = random
        self._pace_s = pace_s
        self._goodbyes = goodbyes
        self._call_seconds_max = call_seconds_max
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0
        self._running: list[asyncio.Task[None]] = []
        self.slowest_turn_s = 0.0
        """The longest time between an answer and a steady worker's next heartbeat, not counting pauses."""

        def worker(kind: str, number: int, lease_ms: int | None = None) -> LoadWorker:
            lease_ms = lease_ms or leases_ms[number % len(leases_ms)]
            return LoadWorker(f"{kind}-{number}", lease_ms, ledger, Random(random.random()))

        self._steady = [[worker("unary", number)] for number in range(unary)]
        self._steady += [
            [worker(f"batch-{batch}", number) for number in range(batch_size)] for batch in range(batches)
        ]
        self._short_lived = [worker("mayfly", number, short_lived_lease_ms) for number in range(short_lived)]

    async def __aenter__(self) -> Self:
        self._running = [asyncio.create_task(self._keep_beating(group)) for group in self._steady]
        self._running += [asyncio.create_task(self._come_and_go(worker)) for worker in self._short_lived]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        ends = await asyncio.gather(*self._running, return_exceptions=True)
        for end in ends:
            if error is None and isinstance(end, Exception):
                raise end

    def pause(self) -> None:
        """Start no more calls."""
        self._open.clear()

    async def wait_idle(self) -> None:
        """Wait until no call is under way."""
        assert not self._open.is_set(), "pause it first"
        await self._idle.wait()

    def resume(self) -> None:
        self._open.set()

    # -- kinds of workers

    async def _keep_beating(self, group: Sequence[LoadWorker]) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(self._pace_s * self._random.uniform(0.5, 1.5))
            if self._open.is_set():
                self.slowest_turn_s = max(self.slowest_turn_s, time.monotonic() - began)
            if len(group) == 1:
                await self._beat(group[0])
            else:
                await self._beat_together(group)

    async def _come_and_go(self, worker: LoadWorker) -> None:
        while True:
            for _ in range(self._random.randrange(1, 8)):
                await self._beat(worker)
                await asyncio.sleep(self._pace_s)
            if worker.unanswered is None and self._goodbyes and self._random.random() < 0.3:
                await self._say_goodbye(worker)
            else:
                await self._fall_silent(worker)

    async def _fall_silent(self, worker: LoadWorker) -> None:
        """Stop sending heartbeats, and return when the lease is over."""
        while worker.unanswered is None:
            await asyncio.sleep(self._pace_s * 2)
            request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker.key)
            async with self._calling():
                shown = await self._answer(self._server.liveness.DescribeWorker, request)
                if shown is not None:
                    view = self._ledger.seen(worker.key, shown.worker)
                    if view is None or view.ended:
                        return

    # -- calls

    async def _beat(self, worker: LoadWorker) -> None:
        async with self._calling():
            beat, sent_at = worker.next_beat(), time.monotonic()
            request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat.message())
            result = await self._answer(self._server.liveness.RecordWorkerHeartbeat, request)
            self._record(worker, beat, sent_at, result)

    async def _beat_together(self, group: Sequence[LoadWorker]) -> None:
        async with self._calling():
            beats, sent_at = [worker.next_beat() for worker in group], time.monotonic()
            request = service_pb2.RecordWorkerHeartbeatsRequest(
                namespace=NAMESPACE, heartbeats=[beat.message() for beat in beats]
            )
            response = await self._answer(self._server.liveness.RecordWorkerHeartbeats, request)
            items = response.items if response is not None else [None] * len(group)
            for worker, beat, item in zip(group, beats, items, strict=True):
                result = None
                if item is not None and item.HasField("result"):
                    result = item.result
                elif item is not None and item.status.code != grpc.StatusCode.UNAVAILABLE.value[0]:
                    self._ledger.violate(f"{beat} was refused: {item.status}")
                self._record(worker, beat, sent_at, result)

    def _record(
        self, worker: LoadWorker, beat: Beat, sent_at: float, result: worker_pb2.HeartbeatResult | None
    ) -> None:
        if result is None:
            self._ledger.beat_in_doubt(beat, sent_at)
        else:
            worker.unanswered = None
            self._ledger.beat_answered(beat, sent_at, result)

    async def _say_goodbye(self, worker: LoadWorker) -> None:
        request = service_pb2.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker.key)
        response: service_pb2.ShutdownWorkerResponse | None = None
        while response is None:
            async with self._calling():
                response = await self._answer(self._server.liveness.ShutdownWorker, request)
                if response is None:
                    self._ledger.goodbye_in_doubt(worker.key)
                else:
                    self._ledger.goodbye_answered(worker.key, response)
            await asyncio.sleep(self._pace_s)

    async def _answer(self, method: grpc.aio.UnaryUnaryMultiCallable[R, T], request: R) -> T | None:
        """Return the answer; None if there was none, so that the effect of the call is unknown."""
        try:
            answer: T = await method(request, timeout=self._call_seconds_max)
        except grpc.aio.AioRpcError as error:
            if error.code() not in UNANSWERED:
                self._ledger.violate(f"{request} was refused: {error.code()} {error.details()}")
            elif not self._server.running:
                self._open.clear()  # the code that restarts the server resumes the load
            return None
        return answer

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
