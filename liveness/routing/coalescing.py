"""Single heartbeats for the same node and namespace are forwarded together, as one batch.

The first heartbeat is sent at once. Those that arrive while it is in flight are collected, for four milliseconds at most, so
that no heartbeat waits for the commit of another. Each caller keeps its own deadline and gets its own outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.routing import rpc_failures
from liveness.routing.forwarding import Forwarder, RpcResponse
from liveness.routing.routing_table import Owner
from liveness.routing.rpc_failures import RpcFailure
from liveness.security.forwarded_callers import item_metadata
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse

BATCH_PATH = "/liveness.v1.LivenessService/RecordWorkerHeartbeats"
BATCH_WINDOW_MS = 4
BATCH_ITEMS_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
BATCHES_IN_FLIGHT_MAX = 4
"""Per queue. Beyond it, heartbeats are collected until a batch is answered: 5 ms on average if a commit takes 20 ms."""


PRINCIPAL_BYTES_MAX = 8 * 1024
"""A batch names the distinct principals of its heartbeats in its metadata, which gRPC limits."""

QueueKey = tuple[str, str, str]
"""The node's id and address, and the namespace."""


class _QueuedHeartbeat(NamedTuple):
    request: bytes
    """A serialized RecordWorkerHeartbeatRequest. Several of one namespace, concatenated, parse as one
    RecordWorkerHeartbeatsRequest, because the fields have the same numbers."""
    timeout_s: float
    principal: bytes
    """Who sent it, encoded; empty if callers are not asked."""
    outcome: Outcome


class Outcome(Protocol):
    """What a caller waits for: its own future, or its place among others that were sent together."""

    def done(self) -> bool: ...

    def set_result(self, outcome: RpcResponse | RpcFailure, /) -> None: ...

    def cancel(self) -> object: ...


class _Outcomes:
    """The outcomes of heartbeats whose caller waits for all of them."""

    __slots__ = ("_left", "found", "known")

    def __init__(self, count: int) -> None:
        self.found: list[RpcResponse | RpcFailure | None] = [None] * count
        self._left = count
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self, position: int, outcome: RpcResponse | RpcFailure) -> None:
        self.found[position] = outcome
        self._left -= 1
        if not self._left and not self.known.done():
            self.known.set_result(None)


class _OneOfMany:
    __slots__ = ("_outcomes", "_position")

    def __init__(self, outcomes: _Outcomes, position: int) -> None:
        self._outcomes = outcomes
        self._position = position

    def done(self) -> bool:
        return self._outcomes.known.done() or self._outcomes.found[self._position] is not None

    def set_result(self, outcome: RpcResponse | RpcFailure, /) -> None:
        self._outcomes.set(self._position, outcome)

    def cancel(self) -> object:
        return self._outcomes.known.cancel()


class _BatchQueue:
    """The heartbeats for one node and one namespace."""

    __slots__ = (
        "_clock",
        "_flush_task",
        "_in_flight",
        "_on_idle",
        "_owner",
        "_send",
        "_tasks",
        "_waiting",
    )

    def __init__(
        self,
        owner: Owner,
        forwarder: Forwarder,
        clock: Clock,
        tasks: BackgroundTasks,
        on_idle: Callable[[], None],
    ) -> None:
        self._owner = owner
        self._send = forwarder.send
        self._clock = clock
        self._on_idle = on_idle
        self._waiting: list[_QueuedHeartbeat] = []
        self._in_flight = 0
        self._flush_task: asyncio.Task[None] | None = None
        self._tasks = tasks

    def add(self, item: _QueuedHeartbeat) -> None:
        self._waiting.append(item)
        if self._in_flight >= BATCHES_IN_FLIGHT_MAX or len(self._waiting) > 1:
            if self._in_flight < BATCHES_IN_FLIGHT_MAX and len(self._waiting) >= BATCH_ITEMS_MAX:
                self._flush()
            return
        wait_ms = BATCH_WINDOW_MS if self._in_flight else 0
        self._flush_task = self._tasks.start(self._flush_after(wait_ms))

    def add_all(self, items: list[_QueuedHeartbeat]) -> None:
        """The same for heartbeats that came at the same time: they need not wait for each other."""
        self._waiting += items
        if self._in_flight < BATCHES_IN_FLIGHT_MAX:
            self._flush()

    async def _flush_after(self, wait_ms: int) -> None:
        if wait_ms:
            await self._clock.sleep(wait_ms)
        else:
            await asyncio.sleep(0)  # heartbeats of the same turn of the event loop join the batch
        self._flush_task = None
        self._flush()

    def _flush(self) -> None:
        if self._flush_task is not None:
            self._flush_task.cancel()
            self._flush_task = None
        while self._waiting and self._in_flight < BATCHES_IN_FLIGHT_MAX:
            items = self._next_batch()
            if items:
                self._in_flight += 1
                self._tasks.start(self._send_batch(items))
        if not self._in_flight:
            self._on_idle()

    def drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            item.outcome.cancel()

    def _next_batch(self) -> list[_QueuedHeartbeat]:
        """Take the next batch from the queue. Heartbeats whose callers are gone are dropped."""
        taken, size, principals, principal_bytes = 0, 0, set(), 0
        for item in self._waiting[:BATCH_ITEMS_MAX]:
            size += len(item.request)
            if item.principal not in principals:
                principals.add(item.principal)
                principal_bytes += len(item.principal)
            if taken and (size > BATCH_BYTES_MAX or principal_bytes > PRINCIPAL_BYTES_MAX):
                break
            taken += 1
        items, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return [item for item in items if not item.outcome.done()]

    async def _send_batch(self, items: list[_QueuedHeartbeat]) -> None:
        try:
            body = b"".join([item.request for item in items])
            timeout_s = max(item.timeout_s for item in items)
            metadata = item_metadata([item.principal for item in items])
            outcome = await self._send(BATCH_PATH, body, self._owner, metadata, timeout_s)
            _resolve_all(items, outcome, self._owner)
        finally:
            for item in items:
                if not item.outcome.done():
                    item.outcome.cancel()
            self._in_flight -= 1
            self._flush()


def _resolve_all(items: list[_QueuedHeartbeat], outcome: RpcResponse | RpcFailure, owner: Owner) -> None:
    if isinstance(outcome, RpcFailure):
        for item in items:
            _resolve(item, outcome)
        return
    try:
        results = RecordWorkerHeartbeatsResponse.FromString(outcome.body).items
    except DecodeError:
        results = ()  # type: ignore[assignment]
    if len(results) != len(items):
        for item in items:
            _resolve(item, rpc_failures.node_lost(owner))  # the node did not understand the batch
        return
    for item, result in zip(items, results, strict=True):
        if result.HasField("status"):
            _resolve(item, rpc_failures.from_status(result.status))
        else:
            _resolve(item, RpcResponse(result.result.SerializeToString()))


def _resolve(item: _QueuedHeartbeat, outcome: RpcResponse | RpcFailure) -> None:
    if not item.outcome.done():
        item.outcome.set_result(outcome)


class Coalescer:
    def __init__(self, forwarder: Forwarder, clock: Clock) -> None:
        self._forwarder = forwarder
        self._clock = clock
        self._queues: dict[QueueKey, _BatchQueue] = {}
        self._tasks = BackgroundTasks("heartbeat batches")

    async def send(
        self, owner: Owner, namespace: str, request: bytes, timeout_s: float, principal: bytes = b""
    ) -> RpcResponse | RpcFailure:
        """`request`: a RecordWorkerHeartbeatRequest serialized by protobuf, not bytes taken from the caller. `principal`: who
        sent it, encoded."""
        queue = self._queue(owner, namespace)
        outcome: asyncio.Future[RpcResponse | RpcFailure] = asyncio.get_running_loop().create_future()
        queue.add(_QueuedHeartbeat(request, timeout_s, principal, outcome))
        return await outcome

    async def send_all(
        self,
        owner: Owner,
        namespace: str,
        requests: Sequence[bytes],
        timeout_s: float,
        principals: Sequence[bytes],
    ) -> list[RpcResponse | RpcFailure]:
        """The same for many heartbeats of a namespace. `principals`: one for each."""
        queue = self._queue(owner, namespace)
        outcomes = _Outcomes(len(requests))
        queue.add_all(
            [
                _QueuedHeartbeat(request, timeout_s, principal, _OneOfMany(outcomes, position))
                for position, (request, principal) in enumerate(zip(requests, principals, strict=True))
            ]
        )
        await outcomes.known
        return [outcome for outcome in outcomes.found if outcome is not None]

    def _queue(self, owner: Owner, namespace: str) -> _BatchQueue:
        key = (owner.node_id, owner.address, namespace)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _BatchQueue(
                owner, self._forwarder, self._clock, self._tasks, lambda: self._remove_queue(key)
            )
        return queue

    def _remove_queue(self, key: QueueKey) -> None:
        # Namespaces come and go, and a queue is cheap to create again.
        self._queues.pop(key, None)

    async def close(self) -> None:
        """End what is under way. Callers that still wait are cancelled."""
        for queue in tuple(self._queues.values()):
            queue.drop_waiting()
        await self._tasks.close()
