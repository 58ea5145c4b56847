"""What supervisors wait for at this node: orders to their groups, and requests for the output of a component.

Orders are part of the supervisor's worker and durable; here is only who waits for them. Requests for output exist in memory
alone: a request whose supervisor or node is gone ends with its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from secrets import token_hex
from typing import NamedTuple

from liveness.clock import Clock, wait_or_timeout
from liveness.domain.errors import LivenessError, ShuttingDown
from liveness.domain.keys import WorkerKey
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit, Shard

LOG_REQUESTS_MAX = 100
"""How many requests may wait for one supervisor."""


class Output(NamedTuple):
    """The answer of a supervisor."""

    lines: tuple[str, ...]
    next: str


class LogRequest(NamedTuple):
    request_id: str
    component: str
    lines: int
    after: str
    answer: asyncio.Future[Output]


class SupervisorMail(NodeListener):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[WorkerKey, asyncio.Future[None]] = {}
        self._log_requests: dict[WorkerKey, dict[str, LogRequest]] = {}
        self._delivered: set[str] = set()
        self._is_closed = False

    async def wait(self, supervisor: WorkerKey, timeout_ms: int) -> None:
        """Wait for orders or requests for output. A newer wait for the same supervisor ends this one."""
        if self._is_closed:
            raise ShuttingDown
        self._wake(supervisor)
        future = self._waiting[supervisor] = asyncio.get_running_loop().create_future()
        try:
            await wait_or_timeout(future, self._clock, timeout_ms)
            if future.done() and (error := future.exception()) is not None:
                raise error
        finally:
            future.cancel()
            if self._waiting.get(supervisor) is future:
                del self._waiting[supervisor]

    def has_room(self, supervisor: WorkerKey) -> bool:
        return len(self._log_requests.get(supervisor, ())) < LOG_REQUESTS_MAX

    async def request_output(
        self, supervisor: WorkerKey, component: str, lines: int, after: str, timeout_ms: int
    ) -> Output | None:
        """Ask the supervisor; None if it does not answer in time."""
        answer: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        request = LogRequest(token_hex(8), component, lines, after, answer)
        requests = self._log_requests.setdefault(supervisor, {})
        requests[request.request_id] = request
        self._wake(supervisor)
        try:
            await wait_or_timeout(answer, self._clock, timeout_ms)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()
            self._delivered.discard(request.request_id)
            del requests[request.request_id]
            if not requests and self._log_requests.get(supervisor) is requests:
                del self._log_requests[supervisor]

    def take_requests(self, supervisor: WorkerKey) -> list[LogRequest]:
        """Return the requests that the supervisor was not told of yet."""
        requests = self._log_requests.get(supervisor, {})
        new = [request for id, request in requests.items() if id not in self._delivered]
        self._delivered.update(request.request_id for request in new)
        return new

    def answer(self, supervisor: WorkerKey, request_id: str, output: Output) -> None:
        """Answer a request; one that nobody waits for any more is forgotten."""
        request = self._log_requests.get(supervisor, {}).get(request_id)
        if request is not None and not request.answer.done():
            request.answer.set_result(output)

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        if self._waiting:
            for commit in commits:
                for key in commit.changed_orders & self._waiting.keys():
                    self._wake(key)

    def shard_closed(self, shard: Shard) -> None:
        for key in [key for key in self._waiting if key in shard.workers]:
            self._wake(key)  # the poll finds that the shard is not served here any more

    def close(self) -> None:
        self._is_closed = True
        for key in list(self._waiting):
            self._wake(key, ShuttingDown())

    def _wake(self, supervisor: WorkerKey, error: LivenessError | None = None) -> None:
        future = self._waiting.pop(supervisor, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
