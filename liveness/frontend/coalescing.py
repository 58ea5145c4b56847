"""Heartbeats that came one by one travel together: those for one node and namespace as one batch.

The first goes at once. What comes while it is under way gathers, for four milliseconds at most, so that nobody waits
for another's commit. Each caller keeps its own deadline and is told of its own outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from liveness.clock import Clock
from liveness.frontend import refusals
from liveness.frontend.forwarding import Answer, Forwarder
from liveness.frontend.refusals import Refusal
from liveness.frontend.routes import Owner
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse

BATCH_PATH = "/liveness.v1.LivenessService/RecordWorkerHeartbeats"
GATHER_MS = 4
ITEMS_MAX = 1_000
BYTES_MAX = 1 << 20
UNDER_WAY_MAX = 4
"""Batches of one lane. Then heartbeats gather until one is back: while the owner takes 20 ms for a commit, that is 5 ms."""


class _Item(NamedTuple):
    request: bytes
    """A whole RecordWorkerHeartbeatRequest. Those of one namespace, written one after the other, read as one
    RecordWorkerHeartbeatsRequest: the fields have the same numbers."""
    timeout_s: float
    outcome: asyncio.Future[Answer | Refusal]


class _Lane:
    """To one node, for one namespace."""

    __slots__ = ("_clock", "_departing", "_on_idle", "_owner", "_send", "_tasks", "_under_way", "_waiting")

    def __init__(self, owner: Owner, forwarder: Forwarder, clock: Clock, on_idle: Callable[[], None]) -> None:
        self._owner = owner
        self._send = forwarder.send
        self._clock = clock
        self._on_idle = on_idle
        self._waiting: list[_Item] = []
        self._under_way = 0
        self._departing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, item: _Item) -> None:
        self._waiting.append(item)
        if self._under_way >= UNDER_WAY_MAX or len(self._waiting) > 1:
            if self._under_way < UNDER_WAY_MAX and len(self._waiting) >= ITEMS_MAX:
                self._depart()
            return
        wait_ms = GATHER_MS if self._under_way else 0
        self._departing = self._spawn(self._depart_in(wait_ms))

    async def _depart_in(self, wait_ms: int) -> None:
        if wait_ms:
            await self._clock.sleep(wait_ms)
        else:
            await asyncio.sleep(0)  # those who come in this very turn of the event loop go along
        self._departing = None
        self._depart()

    def _depart(self) -> None:
        if self._departing is not None:
            self._departing.cancel()
            self._departing = None
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            items = self._load()
            if items:
                self._under_way += 1
                self._spawn(self._carry(items))
        if not self._under_way:
            self._on_idle()

    def _load(self) -> list[_Item]:
        """The next batch; those whose callers have gone stay behind."""
        taken, size = 0, 0
        for item in self._waiting[:ITEMS_MAX]:
            size += len(item.request)
            if taken and size > BYTES_MAX:
                break
            taken += 1
        items, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return [item for item in items if not item.outcome.done()]

    async def _carry(self, items: list[_Item]) -> None:
        try:
            body = b"".join([item.request for item in items])
            timeout_s = max(item.timeout_s for item in items)
            outcome = await self._send(BATCH_PATH, body, self._owner, (), timeout_s)
            _tell(items, outcome, self._owner)
        finally:
            for item in items:
                if not item.outcome.done():
                    item.outcome.cancel()
            self._under_way -= 1
            self._depart()

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _tell(items: list[_Item], outcome: Answer | Refusal, owner: Owner) -> None:
    if isinstance(outcome, Refusal):
        for item in items:
            _settle(item, outcome)
        return
    try:
        answered = RecordWorkerHeartbeatsResponse.FromString(outcome.body).items
    except DecodeError:
        answered = ()  # type: ignore[assignment]
    if len(answered) != len(items):
        for item in items:
            _settle(item, refusals.lost(owner))  # who answers so has not understood
        return
    for item, one in zip(items, answered, strict=True):
        if one.HasField("status"):
            _settle(item, refusals.from_status(one.status))
        else:
            _settle(item, Answer(one.result.SerializeToString()))


def _settle(item: _Item, outcome: Answer | Refusal) -> None:
    if not item.outcome.done():
        item.outcome.set_result(outcome)


class Coalescer:
    def __init__(self, forwarder: Forwarder, clock: Clock) -> None:
        self._forwarder = forwarder
        self._clock = clock
        self._lanes: dict[tuple[str, str, str], _Lane] = {}

    async def send(self, owner: Owner, namespace: str, request: bytes, timeout_s: float) -> Answer | Refusal:
        """`request`: a RecordWorkerHeartbeatRequest that protobuf itself has written."""
        key = (owner.node_id, owner.address, namespace)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(owner, self._forwarder, self._clock, lambda: self._drop(key))
        outcome: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
        lane.add(_Item(request, timeout_s, outcome))
        return await outcome

    def _drop(self, key: tuple[str, str, str]) -> None:
        """Namespaces come and go; an idle lane costs nothing to make again."""
        self._lanes.pop(key, None)
