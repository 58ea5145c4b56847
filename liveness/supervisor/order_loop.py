"""Receives the orders to one group, and requests for the output of its components, by long polls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.duration_pb2 import Duration

from liveness.clock import Clock
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.supervisor.sessions import Session
from liveness.v1.component_pb2 import ComponentOrder
from liveness.v1.component_service_pb2 import (
    PollComponentOrdersRequest,
    PollComponentOrdersResponse,
    SendComponentLogsRequest,
)

WAIT_S = 20
CALL_TIMEOUT_MS = 5_000
RETRY_MS = (200, 5_000)

logger = logging.getLogger("liveness.supervisor")

LogRequest = PollComponentOrdersResponse.LogRequest
CarryOut = Callable[[ComponentOrder], Awaitable[None]]
ReadOutput = Callable[[str, int, str], tuple[list[str], str]]
"""Returns lines of a component's output, and where they end: (component id, how many, after)."""


class OrderLoop:
    def __init__(
        self,
        client: LivenessClient,
        namespace: str,
        clock: Clock,
        session: Session,
        carry_out: CarryOut,
        read_output: ReadOutput,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._session = session
        self._carry_out = carry_out
        self._read_output = read_output
        self._known_through = 0
        self._done_through = 0
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._told_through = 0
        self._polls: list[asyncio.Task[PollComponentOrdersResponse]] = []

    async def run(self) -> None:
        wait_ms = RETRY_MS[0]
        try:
            while not self._session.is_over:
                try:
                    answer = await self._next()
                except RpcFailed as error:
                    logger.info("cannot ask for orders: %s", error)
                    await self._clock.sleep(max(wait_ms, error.rpc_failure.retry_after_ms))
                    wait_ms = min(wait_ms * 2, RETRY_MS[1])
                    continue
                wait_ms = RETRY_MS[0]
                for order in answer.orders:
                    self._begin(order)
                for request in answer.log_requests:
                    task = asyncio.get_running_loop().create_task(self._send_output(request))
                    self._answers.add(task)
                    task.add_done_callback(self._answers.discard)
        finally:
            for each in (*self._polls, *self._under_way.values(), *self._answers):
                each.cancel()

    async def _next(self) -> PollComponentOrdersResponse:
        """Wait for mail. When an order was carried out meanwhile, the server is told at once by a second poll, and answers
        the first one then."""
        while True:
            if not self._polls or self._done_through > self._told_through:
                self._told_through = self._done_through
                self._polls.append(asyncio.get_running_loop().create_task(self._ask()))
            await asyncio.wait({*self._polls, *self._under_way.values()}, return_when=asyncio.FIRST_COMPLETED)
            self._count_done()
            for poll in self._polls:
                if poll.done():
                    self._polls.remove(poll)
                    return poll.result()

    def _count_done(self) -> None:
        for number in sorted(self._under_way):
            if not self._under_way[number].done():
                break
            del self._under_way[number]
            self._done_through = number

    async def _ask(self) -> PollComponentOrdersResponse:
        request = PollComponentOrdersRequest(
            namespace=self._namespace,
            worker_instance_key=self._session.key,
            session_id=self._session.session_id,
            done_through=self._done_through,
            known_through=self._known_through,
            wait=Duration(seconds=WAIT_S),
        )
        answer: PollComponentOrdersResponse = await self._client.call(
            lambda endpoint: endpoint.components.PollComponentOrders,
            request,
            WAIT_S * 1_000 + CALL_TIMEOUT_MS,
            is_long_poll=True,
        )
        return answer

    def _begin(self, order: ComponentOrder) -> None:
        if order.number <= self._known_through:
            return
        self._known_through = order.number
        self._under_way[order.number] = asyncio.get_running_loop().create_task(self._execute(order))

    async def _execute(self, order: ComponentOrder) -> None:
        try:
            await self._carry_out(order)
        except Exception:
            logger.exception("order %s could not be carried out", order.number)

    async def _send_output(self, request: LogRequest) -> None:
        lines, end = self._read_output(request.component_id, request.lines, request.after)
        answer = SendComponentLogsRequest(
            namespace=self._namespace,
            worker_instance_key=self._session.key,
            session_id=self._session.session_id,
            request_id=request.request_id,
            lines=lines,
            next=end,
        )
        try:
            await self._client.call(
                lambda endpoint: endpoint.components.SendComponentLogs, answer, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            logger.info("cannot send output: %s", error)
