"""Calls on the simulated network: their way to the server, their handling there, and their way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from tests.simulation.network import Channel, Listener

KEEPALIVE_S = 13.0
"""A connection on which nothing comes back lasts this long."""
RESET_S = 0.001
LOOPBACK_S = 0.000_1
"""Messages of a process to itself do not leave its machine, so none is lost."""

_ids = count(1)

Pairs = tuple[tuple[str, Any], ...]
Status = tuple[grpc.StatusCode, str, Pairs, Pairs]
"""Code, details, initial and trailing metadata."""


class Served:
    """A call at the server; also the handler's context."""

    def __init__(self, call: Call, listener: Listener, metadata: Pairs, deadline: float | None) -> None:
        self.call: Call | None = call
        self.on_done: list[Callable[[], None]] = []
        self.done = False
        self._id = next(_ids)
        self._listener = listener
        self._metadata = metadata
        self._deadline = deadline
        self._initial: Pairs = ()
        self._trailing: Pairs = ()
        self._code: grpc.StatusCode | None = None
        self._task: asyncio.Task[None] | None = None
        listener.serving[self._id] = self

    # -- grpc.aio.ServicerContext

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._listener.network.loop.time()

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._initial = tuple(metadata)

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = tuple(metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        raise Aborted(code, details, tuple(trailing_metadata))

    # -- lifecycle

    def begin(self, work: Any) -> None:
        self._task = self._listener.process.spawn(work)

    def end(self) -> None:
        """End the call because the client or the server is gone."""
        if self._task is not None:
            self._task.cancel()

    def finish(self, code: grpc.StatusCode, details: str = "", trailing: Pairs = ()) -> None:
        if self.done:
            return
        self.done = True
        self._listener.serving.pop(self._id, None)
        if self.call is not None:
            self.call.answered((code, details, self._initial, trailing or self._trailing))
        for tell in self.on_done:
            tell()

    def connection_reset(self) -> None:
        """The server's process is gone, and its kernel resets the connection."""
        self.done = True
        self._listener.serving.pop(self._id, None)
        if self.call is not None:
            self.call.reset()

    async def guarded(self, path: str, work: Any) -> None:
        """Run a handler, and end the call as gRPC would."""
        try:
            await work
        except Aborted as refusal:
            self.finish(refusal.code, refusal.text, refusal.trailing)
        except asyncio.CancelledError:
            self.finish(grpc.StatusCode.CANCELLED, "cancelled at the server")
        except Exception as error:  # noqa: BLE001  # gRPC answers UNKNOWN; the simulation reports it
            self._listener.network.on_failure(path, error)
            self.finish(grpc.StatusCode.UNKNOWN, repr(error))
        else:
            self.finish(grpc.StatusCode.OK)


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, text: str, trailing: Pairs) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.trailing = trailing


class Call:
    """A call at the client: the part that all kinds of calls share."""

    def __init__(self, channel: Channel, path: str, timeout: float | None, metadata: Pairs) -> None:
        self.network = network = channel.network
        self.path = path
        self.source = channel.process.host
        self.target = network.host_of(channel.address)
        self._channel = channel
        self._process = channel.process
        self._metadata = metadata
        self._id = next(_ids)
        self._status: Status | None = None
        self._served: Served | None = None
        self._timer: asyncio.TimerHandle | None = None
        loop = network.loop
        self._deadline = None if timeout is None else loop.time() + timeout
        if channel.closed:
            self._status = UNUSABLE
            return
        channel.calls[self._id] = self
        if timeout is not None:
            self._timer = self._process.at(loop.time() + timeout, self._late)

    # -- grpc.aio.Call

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self._status is not None and self._status[0] is grpc.StatusCode.CANCELLED

    async def code(self) -> grpc.StatusCode:
        return (await self._ended())[0]

    async def details(self) -> str:
        return (await self._ended())[1]

    async def initial_metadata(self) -> Pairs:
        return (await self._ended())[2]

    async def trailing_metadata(self) -> Pairs:
        return (await self._ended())[3]

    async def _ended(self) -> Status:
        if self._status is None:
            raise NotImplementedError("no caller asks before the end")
        return self._status

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._leave()
        self._settle(CANCELLED)
        return True

    # -- transport

    def begin(self, later_s: float | None = None) -> None:
        """Send the call. `later_s`: send it as a second copy after this time; its answer is dropped."""
        network = self.network
        if not network.passes(self.source, self.target):
            self._hang(later_s)
            return
        travel_s = LOOPBACK_S if self.source == self.target else network.travel_s()
        if travel_s is None:
            self._break(later_s)
            return
        listener = network.at(self._channel.address)
        when = network.loop.time() + travel_s + (later_s or 0.0)
        if listener is None:
            if later_s is None:
                self._process.at(when, self._settle, _REFUSED)
            return
        listener.process.at(when, self._arrive, listener, later_s is not None)
        if not listener.process.alive:
            self.reset()

    def _arrive(self, listener: Listener, copy: bool) -> None:
        if not listener.open:
            if not copy:
                self._tell(_REFUSED)
            return
        waiting_id = next(_ids)
        listener.enqueue(waiting_id, self, copy)
        listener.when_free(self._begin_service, listener, waiting_id)

    def _begin_service(self, listener: Listener, waiting_id: int) -> None:
        waiting = listener.waiting.pop(waiting_id)
        if waiting.is_wanted:
            self.network.served_arrival = waiting.arrived
            self.serve(listener, waiting.copy)

    def serve(self, listener: Listener, copy: bool) -> None:
        raise NotImplementedError

    def answered(self, status: Status) -> None:
        """The server has answered; send the answer back."""
        raise NotImplementedError

    def reset(self) -> None:
        """The server's process is gone."""
        if self.network.passes(self.target, self.source):
            self._process.at(self.network.loop.time() + RESET_S, self._settle, _RESET)
        else:
            self._hang(None)

    def _tell(self, status: Status) -> None:
        """End the call at the client, if the answer arrives."""
        network = self.network
        if not network.passes(self.target, self.source):
            self._hang(None)
            return
        travel_s = LOOPBACK_S if self.source == self.target else network.travel_s()
        if travel_s is None:
            self._break(None)
            return
        self._process.at(network.loop.time() + travel_s, self._settle, status)

    def _hang(self, later_s: float | None) -> None:
        """Leave the call without an answer until a deadline or the keepalive ends it."""
        if later_s is None:
            self._process.at(self.network.loop.time() + KEEPALIVE_S, self._settle, _SILENT)

    def _break(self, later_s: float | None) -> None:
        """Break the connection of the lost message."""
        if later_s is None:
            self._process.at(self.network.loop.time() + 0.05, self._settle, _BROKEN)

    def _late(self) -> None:
        if self._status is None:
            self._leave()
            self._settle(_LATE)

    def _leave(self) -> None:
        """Tell the server that the client has stopped waiting."""
        served = self._served
        if served is None or served.done:
            return
        served.call = None
        if self.network.passes(self.source, self.target):
            when = self.network.loop.time() + 0.001
            served._listener.process.at(when, served.end)

    def _settle(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        self._channel.calls.pop(self._id, None)
        if self._timer is not None:
            self._timer.cancel()
        self.settled(status)

    def settled(self, status: Status) -> None:
        raise NotImplementedError

    def _error(self) -> grpc.aio.AioRpcError:
        assert self._status is not None
        code, details, initial, trailing = self._status
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(*initial), grpc.aio.Metadata(*trailing), details)


def _status(code: grpc.StatusCode, details: str) -> Status:
    return code, details, (), ()


_REFUSED = _status(grpc.StatusCode.UNAVAILABLE, "simulated: connection refused")
_RESET = _status(grpc.StatusCode.UNAVAILABLE, "simulated: connection reset")
_SILENT = _status(grpc.StatusCode.UNAVAILABLE, "simulated: keepalive without an answer")
_BROKEN = _status(grpc.StatusCode.UNAVAILABLE, "simulated: connection broken")
_LATE = _status(grpc.StatusCode.DEADLINE_EXCEEDED, "simulated: deadline exceeded")
CANCELLED = _status(grpc.StatusCode.CANCELLED, "simulated: cancelled")
UNUSABLE = _status(grpc.StatusCode.CANCELLED, "simulated: the channel is closed")


class UnaryCall(Call):
    def __init__(
        self,
        channel: Channel,
        path: str,
        body: bytes,
        timeout: float | None,
        metadata: Pairs,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        super().__init__(channel, path, timeout, metadata)
        self.body = body
        self._deserialize = deserialize
        self._answer = b""
        self._outcome: asyncio.Future[Any] = self.network.loop.create_future()
        if self._status is not None:
            self._outcome.cancel()
            return
        self.begin()
        if (later_s := self.network.doubles(self.source, path)) is not None:
            self.begin(later_s)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            yield from self._outcome.__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        assert self._status is not None
        if self._status[0] is not grpc.StatusCode.OK:
            raise self._error()
        return self._answer if self._deserialize is None else self._deserialize(self._answer)

    def settled(self, status: Status) -> None:
        if self._outcome.done():
            return
        if status is CANCELLED:
            self._outcome.cancel()
        else:
            self._outcome.set_result(None)

    def serve(self, listener: Listener, copy: bool) -> None:
        self.network.trace("arrives", self.source, self.target, self.path, self.body)
        served = Served(self, listener, self._metadata, self._deadline)
        if copy:
            served.call = None
        else:
            self._served = served
        handler = listener.handler(self.path, self._metadata)
        if handler is None:
            served.finish(grpc.StatusCode.UNIMPLEMENTED)
            return
        served.begin(served.guarded(self.path, self._run(handler, served, listener)))

    async def _run(self, handler: Any, served: Served, listener: Listener) -> None:
        from tests.simulation.network import Delivered

        try:
            deserialize, serialize = handler.request_deserializer, handler.response_serializer
            request = self.body if deserialize is None else deserialize(self.body)
            answer = await handler.unary_unary(request, served)
        except Aborted as refusal:
            self.network.on_answer(
                Delivered(listener.process, self.path, self.body, refusal.code, b"", refusal.trailing)
            )
            raise
        data = answer if serialize is None else serialize(answer)
        self.network.on_answer(
            Delivered(listener.process, self.path, self.body, grpc.StatusCode.OK, data, ())
        )
        if served.call is not None:
            self._answer = data

    def answered(self, status: Status) -> None:
        self.network.trace("answered", self.target, self.source, self.path, status[0].name)
        self._tell(status)
