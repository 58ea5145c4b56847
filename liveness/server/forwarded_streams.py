"""Relay: another node or a frontend forwards the streams of its clients to the owner of their workers.

One call carries many streams. Requests of one stream are served in order; streams do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from functools import lru_cache
from typing import TYPE_CHECKING

from liveness.background import BackgroundTasks
from liveness.domain.errors import (
    InvalidField,
    LivenessError,
    MalformedRequest,
    Unauthenticated,
    Unavailable,
)
from liveness.domain.keys import WorkerKey
from liveness.rpc.status import status_of
from liveness.security.principal import Caller, Principal, current_caller, decode_principal
from liveness.server.attach_stream import AttachStream
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachResponse

if TYPE_CHECKING:
    from liveness.server.attach_streams import AttachStreams

STREAMS_MAX = 100_000
REQUESTS_MAX = 10_000
"""How many requests are served at a time. Further requests are not read, which slows the sender down."""
RESPONSES_MAX = 200_000
"""The server ends the call of a sender that does not read. No worker is marked for it; the sender may call again."""
STREAMS_PER_TURN = 100


class ForwardedStream(AttachStream):
    """A stream of a client that is connected to another node or a frontend."""

    __slots__ = ("_call", "inbox", "is_being_served", "number")

    is_forwarded = True

    def __init__(self, call: ForwardingCall, number: int) -> None:
        super().__init__()
        self._call = call
        self.number = number
        self.inbox: deque[RelayRequest] = deque()
        self.is_being_served = False

    def reply(self, message: AttachResponse) -> None:
        self._call.send(RelayResponse(stream=self.number, response=message))

    def on_worker_moved(self, key: WorkerKey) -> None:
        moved = RelayResponse.Moved(namespace=key.namespace, worker_instance_key=key.instance_key)
        self._call.send(RelayResponse(stream=self.number, moved=moved))

    def on_worker_replaced(self, key: WorkerKey) -> None:
        replaced = RelayResponse.Replaced(namespace=key.namespace, worker_instance_key=key.instance_key)
        self._call.send(RelayResponse(stream=self.number, replaced=replaced))

    def wake(self) -> None:
        self._call.mark_has_orders(self)


class ForwardingCall:
    def __init__(self, attach_streams: AttachStreams) -> None:
        self._attach_streams = attach_streams
        self._streams_by_number: dict[int, ForwardedStream] = {}
        self._responses: deque[RelayResponse] = deque()
        self._streams_with_orders: dict[ForwardedStream, None] = {}
        self._ended = False
        self._error: LivenessError | None = None
        self._wakeup = asyncio.Event()
        self._request_slots = asyncio.Semaphore(REQUESTS_MAX)
        self._tasks = BackgroundTasks("forwarded streams")

    def send(self, response: RelayResponse) -> None:
        if len(self._responses) >= RESPONSES_MAX:
            self.end()
            return
        self._responses.append(response)
        self._wakeup.set()

    def mark_has_orders(self, stream: ForwardedStream) -> None:
        self._streams_with_orders[stream] = None
        self._wakeup.set()

    def end(self, error: LivenessError | None = None) -> None:
        self._ended, self._error = True, error
        self._wakeup.set()

    async def run(
        self, requests: AsyncIterator[RelayRequest | MalformedRequest]
    ) -> AsyncGenerator[RelayResponse, None]:
        self._tasks.start(self._read(requests))
        try:
            while True:
                while self._responses:
                    yield self._responses.popleft()
                if self._ended:
                    break
                if self._streams_with_orders:
                    await self._send_orders()
                    continue
                self._wakeup.clear()
                await self._wakeup.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._tasks.cancel()
            for stream in self._streams_by_number.values():
                self._attach_streams.close_stream(stream, is_broken=False)

    async def _send_orders(self) -> None:
        streams = list(self._streams_with_orders)[:STREAMS_PER_TURN]
        for stream, message in await self._attach_streams.pop_orders(streams):
            stream.reply(message)
        for stream in streams:
            if not stream.orders:
                self._streams_with_orders.pop(stream, None)

    # -- requests

    async def _read(self, requests: AsyncIterator[RelayRequest | MalformedRequest]) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                await self._request_slots.acquire()
                self._receive(request)
            self.end()
        except LivenessError as error:
            self.end(error)

    def _receive(self, request: RelayRequest) -> None:
        stream = self._streams_by_number.get(request.stream)
        if stream is None:
            stream = ForwardedStream(self, request.stream)
            if request.WhichOneof("what") == "request" and len(self._streams_by_number) < STREAMS_MAX:
                self._streams_by_number[request.stream] = stream
        stream.inbox.append(request)
        if not stream.is_being_served:
            stream.is_being_served = True
            self._tasks.start(self._serve(stream))

    async def _serve(self, stream: ForwardedStream) -> None:
        try:
            while stream.inbox:
                await self._serve_one(stream, stream.inbox.popleft())
                self._request_slots.release()
        except LivenessError as error:
            self.end(error)
        finally:
            stream.is_being_served = False

    async def _serve_one(self, stream: ForwardedStream, request: RelayRequest) -> None:
        kind = request.WhichOneof("what")
        if kind == "request":
            if self._streams_by_number.get(stream.number) is not stream:
                _refuse_attach(stream, request, Unavailable())
            elif self._attach_streams.asks_callers and not request.principal:
                _refuse_attach(stream, request, Unauthenticated())
            else:
                if request.principal:
                    current_caller.set(Caller(_decode_principal(request.principal)))
                await self._attach_streams.serve(stream, request.request)
        elif kind in ("broke", "over"):
            self._attach_streams.close_stream(stream, is_broken=kind == "broke")
            self._streams_with_orders.pop(stream, None)
            if self._streams_by_number.get(stream.number) is stream:
                del self._streams_by_number[stream.number]
        else:
            raise InvalidField(field="what", rule="must be request, broke or over")


@lru_cache(maxsize=1_000)
def _decode_principal(text: str) -> Principal:
    return decode_principal(text)


def _refuse_attach(stream: ForwardedStream, request: RelayRequest, error: LivenessError) -> None:
    """Refuse an attach, because the call carries too many streams or does not say who sent it."""
    if request.request.WhichOneof("request") == "attach":
        attach = request.request.attach
        attached = AttachResponse.Attached(
            namespace=attach.namespace, worker_instance_key=attach.worker_instance_key
        )
        attached.status.CopyFrom(status_of(error))
        stream.reply(AttachResponse(attached=attached))
