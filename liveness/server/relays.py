"""Relay: clients' streams at another node or a frontend, as far as their workers live here. Many in one call.

What was sent about one client is served in order; clients do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from liveness.domain.errors import InvalidField, LivenessError, MalformedRequest, Unavailable
from liveness.domain.keys import WorkerKey
from liveness.server.stream import Stream
from liveness.statuses import status_of
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachResponse

if TYPE_CHECKING:
    from liveness.server.streams import Streams

STREAMS_MAX = 100_000
REQUESTS_MAX = 10_000
"""Being served. While there are as many, no more are read, and the sender notices."""
NEWS_MAX = 200_000
"""Who asks and does not read is cut off. That counts for nothing, and it may come back."""
STREAMS_AT_ONCE = 100


class RelayedStream(Stream):
    """Stands for a client's stream elsewhere."""

    __slots__ = ("_relay", "inbox", "number", "serving")

    relayed = True

    def __init__(self, relay: Relay, number: int) -> None:
        super().__init__()
        self._relay = relay
        self.number = number
        self.inbox: deque[RelayRequest] = deque()
        self.serving = False

    def reply(self, message: AttachResponse) -> None:
        self._relay.say(RelayResponse(stream=self.number, response=message))

    def moved(self, key: WorkerKey) -> None:
        moved = RelayResponse.Moved(namespace=key.namespace, worker_instance_key=key.instance_key)
        self._relay.say(RelayResponse(stream=self.number, moved=moved))

    def replaced(self, key: WorkerKey) -> None:
        replaced = RelayResponse.Replaced(namespace=key.namespace, worker_instance_key=key.instance_key)
        self._relay.say(RelayResponse(stream=self.number, replaced=replaced))

    def wake(self) -> None:
        self._relay.has_orders(self)


class Relay:
    def __init__(self, desk: Streams) -> None:
        self._desk = desk
        self._streams: dict[int, RelayedStream] = {}
        self._news: deque[RelayResponse] = deque()
        self._with_orders: dict[RelayedStream, None] = {}
        self._ended = False
        self._error: LivenessError | None = None
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, response: RelayResponse) -> None:
        if len(self._news) >= NEWS_MAX:
            self.end()
            return
        self._news.append(response)
        self._woken.set()

    def has_orders(self, stream: RelayedStream) -> None:
        self._with_orders[stream] = None
        self._woken.set()

    def end(self, error: LivenessError | None = None) -> None:
        self._ended, self._error = True, error
        self._woken.set()

    async def run(
        self, requests: AsyncIterator[RelayRequest | MalformedRequest]
    ) -> AsyncGenerator[RelayResponse, None]:
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                while self._news:
                    yield self._news.popleft()
                if self._ended:
                    break
                if self._with_orders:
                    await self._take_orders()
                    continue
                self._woken.clear()
                await self._woken.wait()
            if self._error is not None:
                raise self._error
        finally:
            for task in (reader, *self._tasks):
                task.cancel()
            for stream in self._streams.values():
                self._desk.over(stream, broke=False)

    async def _take_orders(self) -> None:
        streams = list(self._with_orders)[:STREAMS_AT_ONCE]
        for stream, message in await self._desk.take_orders(streams):
            stream.reply(message)
        for stream in streams:
            if not stream.orders:
                self._with_orders.pop(stream, None)

    # -- what comes in

    async def _read(self, requests: AsyncIterator[RelayRequest | MalformedRequest]) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                await self._room.acquire()
                self._take(request)
            self.end()
        except LivenessError as error:
            self.end(error)

    def _take(self, request: RelayRequest) -> None:
        stream = self._streams.get(request.stream)
        if stream is None:
            stream = RelayedStream(self, request.stream)
            if request.WhichOneof("what") == "request" and len(self._streams) < STREAMS_MAX:
                self._streams[request.stream] = stream
        stream.inbox.append(request)
        if not stream.serving:
            stream.serving = True
            task = asyncio.get_running_loop().create_task(self._serve(stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: RelayedStream) -> None:
        try:
            while stream.inbox:
                await self._serve_one(stream, stream.inbox.popleft())
                self._room.release()
        except LivenessError as error:
            self.end(error)
        finally:
            stream.serving = False

    async def _serve_one(self, stream: RelayedStream, request: RelayRequest) -> None:
        what = request.WhichOneof("what")
        if what == "request":
            if self._streams.get(stream.number) is stream:
                await self._desk.serve(stream, request.request)
            else:
                _refuse(stream, request)
        elif what in ("broke", "over"):
            self._desk.over(stream, broke=what == "broke")
            self._with_orders.pop(stream, None)
            if self._streams.get(stream.number) is stream:
                del self._streams[stream.number]
        else:
            raise InvalidField(field="what", rule="must be request, broke or over")


def _refuse(stream: RelayedStream, request: RelayRequest) -> None:
    """There is no room for one more."""
    if request.request.WhichOneof("request") == "attach":
        asked = request.request.attach
        attached = AttachResponse.Attached(
            namespace=asked.namespace, worker_instance_key=asked.worker_instance_key
        )
        attached.status.CopyFrom(status_of(Unavailable()))
        stream.reply(AttachResponse(attached=attached))
