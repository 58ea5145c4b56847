"""Streams on the simulated network: messages in both directions, each in order or lost with its connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc

from tests.simulation.rpc_calls import CANCELLED, UNUSABLE, Call, Pairs, Served, Status

if TYPE_CHECKING:
    from tests.simulation.network import Channel, Listener

RESEND_S = 0.05
ORDERED_S = 0.000_3
"""Longer than a timer may be late, so that messages of one stream do not overtake each other."""


class StreamCall(Call):
    """Messages in both directions, in order; `grpc.aio.EOF` follows the last."""

    def __init__(
        self,
        channel: Channel,
        path: str,
        bodies: list[bytes] | None,
        requests: AsyncIterator[Any] | None,
        timeout: float | None,
        metadata: Pairs,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        super().__init__(channel, path, timeout, metadata)
        self._process.on_death.append(self._leave)
        self._serialize = serialize
        self._deserialize = deserialize
        self._up: _Pipe = _Pipe(self.network, self.source, self.target)
        self._down: _Pipe = _Pipe(self.network, self.target, self.source)
        self._one = bodies[0] if bodies else None
        self._writer: asyncio.Task[None] | None = None
        if self._status is not None:
            self._down.close()
            return
        self.begin()
        if requests is not None:
            self._writer = self._process.spawn(self._write_all(requests))

    async def _write_all(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            await self.write(request)
        await self.done_writing()

    async def write(self, request: Any) -> None:
        if self._status is not None:
            raise asyncio.InvalidStateError("the call has ended")
        data = request if self._serialize is None else self._serialize(request)
        self._up.put(data, self.broken)

    async def done_writing(self) -> None:
        self._up.put(None, self.broken)

    def broken(self) -> None:
        """A message was lost, and its connection with it: each side finds out by itself."""
        served = self._served
        if served is not None:
            served.call = None
            served._listener.process.at(self.network.loop.time() + 0.05, served.end)
        self._break(None)

    async def read(self) -> Any:
        data = await self._down.get()
        if data is None:
            assert self._status is not None
            if self._status[0] is grpc.StatusCode.OK:
                return grpc.aio.EOF
            if self._status in (CANCELLED, UNUSABLE):
                raise asyncio.CancelledError
            raise self._error()
        return data if self._deserialize is None else self._deserialize(data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def _ended(self) -> Status:
        return self._status or (grpc.StatusCode.OK, "", (), ())

    def _leave(self) -> None:
        """The client, or its kernel, ends the stream. A server that is cut off finds out later."""
        served, network = self._served, self.network
        if served is None or served.done:
            return
        served.call = None
        later_s = 0.001 if network.passes(self.source, self.target) else network.unnoticed_s()
        served._listener.process.at(network.loop.time() + later_s, served.end)

    def settled(self, status: Status) -> None:
        if self._leave in self._process.on_death:
            self._process.on_death.remove(self._leave)
        if self._writer is not None:
            self._writer.cancel()
        self._down.close()

    def serve(self, listener: Listener, copy: bool) -> None:
        self.network.trace("opens", self.source, self.target, self.path, b"")
        self._served = served = Served(self, listener, self._metadata, self._deadline)
        handler = listener.handler(self.path, self._metadata)
        if handler is None:
            served.finish(grpc.StatusCode.UNIMPLEMENTED)
            return
        self._up.receiver = listener.process
        self._up.listener = listener
        self._down.receiver = self._process
        served.begin(served.guarded(self.path, self._run(handler, served)))

    async def _run(self, handler: Any, served: Served) -> None:
        if self._one is not None:
            messages = handler.unary_stream(handler.request_deserializer(self._one), served)
        else:
            messages = handler.stream_stream(self._incoming(handler), served)
        async for message in messages:
            if served.call is not None:
                self._down.put(handler.response_serializer(message), self.broken)

    async def _incoming(self, handler: Any) -> AsyncIterator[Any]:
        while (data := await self._up.get()) is not None:
            yield handler.request_deserializer(data)

    def answered(self, status: Status) -> None:
        # Runs after the messages that were sent before.
        self._down.put(status, self.broken, self._end)

    def _end(self, status: Any) -> None:
        self._settle(status)


class _Pipe:
    """One direction of a stream: in order, or broken."""

    def __init__(self, network: Any, source: str, target: str) -> None:
        self.receiver: Any = None
        self.listener: Listener | None = None
        """The listener at the receiving end, if that is a server."""
        self._network = network
        self._source, self._target = source, target
        self._arrived: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._last = 0.0
        self._unsent: list[tuple[Any, Any, Any]] = []
        self._closed = False

    def put(
        self, data: Any, on_broken: Callable[[], None], then: Callable[[Any], None] | None = None
    ) -> None:
        network = self._network
        if self._unsent:
            self._unsent.append((data, on_broken, then))
            return
        if self.receiver is None or not network.passes(self._source, self._target):
            # The call has not arrived yet, or the network is cut: the connection sends again later, in order.
            self._unsent.append((data, on_broken, then))
            network.loop.call_later(0.005 if self.receiver is None else RESEND_S, self._flush)
            return
        travel_s = network.travel_s()
        if travel_s is None:
            on_broken()
            return
        self._last = max(self._last + ORDERED_S, network.loop.time() + travel_s)
        self.receiver.at(self._last, then or self._arrive, data)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not self._closed:
            for item in unsent:
                self.put(*item)

    def _arrive(self, data: Any) -> None:
        if self.listener is None:
            self._take_in(data)
        else:
            self.listener.when_free(self._take_in, data)

    def _take_in(self, data: Any) -> None:
        self._arrived.append(data)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        while not self._arrived:
            if self._closed:
                return None
            self._waiter = self._network.loop.create_future()
            await self._waiter
        return self._arrived.popleft()
