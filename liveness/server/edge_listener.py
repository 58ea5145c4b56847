"""A gRPC server whose port belongs to the native edge (`edge/`, module `liveness_edge`). It looks like one of grpc.aio.

The edge reads and writes HTTP/2 in threads of its own, without the interpreter lock. In each turn of the event loop this server
takes everything that has arrived, and runs the same handlers that grpc.aio would run. Calls of a method with a batch handler are
handed to that together (`heartbeat_lane.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import grpc
import structlog

from liveness.clock import SystemClock
from liveness.network_addresses import split_address
from liveness.rpc.call_metadata import keep_metadata
from liveness.server.edge_calls import EXPIRED, EdgeCall, EdgeStream, Headers, NativeEdge
from liveness.server.listener_options import MESSAGE_BYTES_MAX, edge_limits

logger = structlog.get_logger("liveness.server")

MODULE = "liveness_edge"
UNIX = "unix:"
DRAIN_POLL_MS = 2
STOPPED = "the server stopped before it answered"
FLUSH_S_MAX = 2.0
"""How long a stop waits for its last answers to leave, if clients do not read."""


class CallArrived(NamedTuple):
    """A unary call, as `take` gives it."""

    kind: int
    id: int
    method: int
    headers: Headers
    deadline_ms: int
    message: bytes


class BatchHandler(Protocol):
    """Serves all calls of one method that arrived in one turn of the event loop."""

    def take(self, calls: list[Any]) -> list[Any]:
        """Returns those that are to be served one by one."""

    def cancel(self, call_id: int) -> None:
        """The client of a call that was taken withdrew it, or is gone."""

    def stop(self) -> None:
        """End all calls that were taken; the server answers them."""

    def undecided(self) -> asyncio.Future[None] | None:
        """Done when everything that was taken until now has been decided, if not answered; None: it has been."""


class TlsSource(Protocol):
    """What a listener shows, and demands, in new connections."""

    on_changed: list[Callable[[], None]]

    def edge_configuration(self) -> tuple[bytes, bytes, bytes | None, str]:
        """The certificate chain, its key, the authorities of clients' certificates, and: none, optional or required."""


class _CallDetails(NamedTuple):
    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


def edge_is_installed() -> bool:
    try:
        import_module(MODULE)
    except ImportError:
        return False
    return True


class EdgeServer(grpc.aio.Server):
    def __init__(self, options: Sequence[tuple[str, Any]] = ()) -> None:
        """`options`: those of gRPC that a listener differs in from others; see `edge_limits`."""
        self._native: Any = import_module(MODULE)
        self._edge: NativeEdge = self._native.Edge(**edge_limits(dict(options)))
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        """Those that do not list their methods."""
        self._prefixes: list[str] = []
        self._batch_handlers: dict[str, BatchHandler] = {}
        self._ordered: set[str] = set()
        self._unary: list[grpc.RpcMethodHandler[Any, Any]] = []
        self._streaming: list[grpc.RpcMethodHandler[Any, Any]] = []
        self._batch_handler: BatchHandler | None = None
        self._batch_index = -1
        self._ordered_indexes: frozenset[int] = frozenset()
        self._calls: dict[int, EdgeCall] = {}
        self._answers: list[tuple[int, bytes]] = []
        self._is_flush_due = False
        self._is_reading = False
        self._stopped: asyncio.Future[None] | None = None
        self._is_draining = False
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()

    # -- before it starts

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        for handler in generic_rpc_handlers:
            listed: Mapping[str, Any] | None = getattr(handler, "by_path", None)
            if listed is None:
                listed = getattr(handler, "_method_handlers", None)  # gRPC's own class for generated code
            if listed is not None:
                for path, method in listed.items():
                    self._handlers.setdefault(path, method)
                continue
            self._generic.append(handler)
            if prefix := getattr(handler, "path_prefix", ""):
                self._prefixes.append(prefix)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        for name, handler in method_handlers.items():
            self._handlers.setdefault(f"/{service_name}/{name}", handler)

    def add_batch_handler(self, path: str, handler: BatchHandler) -> None:
        """Serve calls of a method together; one method may have such a handler."""
        self._batch_handlers[path] = handler

    def keep_behind_batches(self, path: str) -> None:
        """Serve calls of this method only when everything that was taken before them has been decided."""
        self._ordered.add(path)

    def add_insecure_port(self, address: str) -> int:
        return self._bind(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        raise NotImplementedError("the edge cannot read gRPC's credentials; use add_tls_port")

    def add_tls_port(self, address: str, tls: TlsSource) -> int:
        def use_current() -> None:
            self._edge.set_tls(*tls.edge_configuration())

        use_current()
        tls.on_changed.append(use_current)
        return self._bind(address)

    def _bind(self, address: str) -> int:
        """Raises RuntimeError, as gRPC does."""
        try:
            host, port = (address, 0) if address.startswith(UNIX) else split_address(address)
            return self._edge.bind(host, port)
        except OSError as error:
            raise RuntimeError(f"cannot listen on {address}: {error}") from error

    # -- while it runs

    async def start(self) -> None:
        unary: list[str] = []
        streaming: list[str] = []
        for path, handler in self._handlers.items():
            (unary if handler.unary_unary is not None else streaming).append(path)
        self._unary = [self._handlers[path] for path in unary]
        self._streaming = [self._handlers[path] for path in streaming]
        for path, batch_handler in self._batch_handlers.items():
            self._batch_handler, self._batch_index = batch_handler, unary.index(path)
        self._ordered_indexes = frozenset(unary.index(path) for path in self._ordered)
        self._edge.start(
            unary=[(path, MESSAGE_BYTES_MAX) for path in unary],
            streaming=[(path, MESSAGE_BYTES_MAX) for path in streaming],
            prefixes=[(prefix, MESSAGE_BYTES_MAX) for prefix in self._prefixes],
        )
        self._loop.add_reader(self._edge.fileno(), self._on_readable)
        self._is_reading = True

    def _on_readable(self) -> None:
        native, batch_index = self._native, self._batch_index
        call_arrived = native.CALL
        batch: list[Any] = []
        others: list[Any] = []
        for event in self._edge.take():
            if event[0] == call_arrived and event[2] == batch_index:
                batch.append(event)
            else:
                others.append(event)
        if batch:
            assert self._batch_handler is not None
            for event in self._batch_handler.take(batch):
                self.serve_alone(event)
        # After the batch, whose tasks run first then: a receive probe must not overtake heartbeats that came before it.
        for event in others:
            self._dispatch(event)

    def _dispatch(self, event: tuple[Any, ...]) -> None:
        native, kind, call_id = self._native, event[0], event[1]
        if kind == native.CALL:
            self.serve_alone(event)
        elif kind == native.OPEN:
            self._open_stream(event)
        elif (call := self._calls.get(call_id)) is None:
            if kind == native.CANCEL and self._batch_handler is not None:
                self._batch_handler.cancel(call_id)
        elif kind == native.CANCEL:
            call.cancel()
        elif isinstance(call, EdgeStream):
            if kind == native.MESSAGE:
                call.message_arrived(event[2])
            elif kind == native.HALF_CLOSE:
                call.half_closed()
            elif kind == native.WRITABLE:
                call.writable()

    def new_call(self, event: tuple[Any, ...]) -> EdgeCall:
        """The context of a unary call that has arrived."""
        return EdgeCall(self._edge, event[1], event[3], event[4])

    def serve_alone(self, event: tuple[Any, ...]) -> None:
        """Serve a unary call in a task of its own."""
        call, handler = self.new_call(event), self._unary[event[2]]
        waits_for = None
        if event[2] in self._ordered_indexes and self._batch_handler is not None:
            waits_for = self._batch_handler.undecided()
        self.run(call, self._serve_unary(call, handler, event[5], waits_for))

    def run(self, call: EdgeCall, serving: Any) -> None:
        """Run what serves a call, until its deadline is over or its client withdraws it."""
        self._calls[call.id] = call
        call.task = task = self._loop.create_task(serving)
        if call.deadline_ms:
            call.timer = self._loop.call_at(call.deadline_ms / 1_000, call.expire)
        task.add_done_callback(lambda done: self._on_done(call, done))

    async def _serve_unary(
        self,
        call: EdgeCall,
        handler: grpc.RpcMethodHandler[Any, Any],
        message: bytes,
        waits_for: asyncio.Future[None] | None,
    ) -> None:
        if waits_for is not None:
            await asyncio.shield(waits_for)
        keep_metadata(call.headers.metadata)
        parse, serialize = handler.request_deserializer, handler.response_serializer
        request = message if parse is None else parse(message)
        serve: Any = handler.unary_unary
        answer = await serve(request, call)
        self.answer(call, answer if serialize is None else serialize(answer))

    def answer(self, call: EdgeCall, answer: bytes) -> None:
        """Answer a unary call, as far as its handler did not say otherwise."""
        if call.is_over:
            return
        if call.has_only_message:
            call.end()
            self.answer_soon([(call.id, answer)])
        else:
            self._edge.send(call.id, answer)
            call.finish_with_own_status()

    def answer_soon(self, answers: list[tuple[int, bytes]]) -> None:
        """Send answers to unary calls, together with those of others in this turn of the event loop."""
        self._answers += answers
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        answers, self._answers, self._is_flush_due = self._answers, [], False
        self._edge.answer(answers)

    def _open_stream(self, event: tuple[Any, ...]) -> None:
        _, call_id, index, headers, deadline_ms, *path = event
        call = EdgeStream(self._edge, call_id, headers, deadline_ms)
        if index >= 0:
            handler: Any = self._streaming[index]
        else:
            handler = self._find_generic(_CallDetails(path[0], headers.metadata))
            if handler is None:
                call.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                return
        self.run(call, self._serve_stream(call, handler))

    def _find_generic(self, details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        for generic in self._generic:
            if (handler := generic.service(details)) is not None:
                return handler
        return None

    async def _serve_stream(self, call: EdgeStream, handler: Any) -> None:
        keep_metadata(call.headers.metadata)
        parse, serialize = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            request: Any = call.requests(parse)
        else:
            message = await call.next_message()
            if message is None:
                call.finish(grpc.StatusCode.INTERNAL, "the call has no request")
                return
            request = message if parse is None else parse(message)
        if handler.response_streaming:
            serve = handler.stream_stream if handler.request_streaming else handler.unary_stream
            async with aclosing(serve(request, call)) as messages:
                async for message in messages:
                    await call.send(message if serialize is None else serialize(message))
        else:
            serve = handler.stream_unary if handler.request_streaming else handler.unary_unary
            answer = await serve(request, call)
            await call.send(answer if serialize is None else serialize(answer))
        call.finish_with_own_status()

    def _on_done(self, call: EdgeCall, task: asyncio.Task[None]) -> None:
        # At once, unless it is a stream that waits to be refused.
        call.add_done_callback(self._forget)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, grpc.aio.AbortError):
            call.finish(grpc.StatusCode.UNKNOWN, _describe_fault(error))
        elif not call.is_over:
            call.finish(grpc.StatusCode.CANCELLED, "the server cancelled the call")

    def _forget(self, call: EdgeCall) -> None:
        self._calls.pop(call.id, None)

    def expire(self, call_id: int) -> None:
        """End a call of a batch whose deadline is over."""
        number: Any = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        self._edge.finish(call_id, number, EXPIRED, ())

    def fail_calls(self, call_ids: Sequence[int], error: BaseException | None) -> None:
        """End calls of a batch that failed as a whole. `error`: None if it was stopped."""
        code, details = grpc.StatusCode.UNAVAILABLE, STOPPED
        if error is not None:
            code, details = grpc.StatusCode.UNKNOWN, _describe_fault(error)
        number: Any = code.value[0]
        for call_id in call_ids:
            self._edge.finish(call_id, number, details, ())

    def stats(self) -> dict[str, int]:
        return self._edge.stats()

    # -- how it ends

    async def stop(self, grace: float | None) -> None:
        """Tell clients to go elsewhere (GOAWAY), and let every call that was read be answered. Those that are not after `grace`
        seconds end as UNAVAILABLE."""
        if not self._is_reading:
            await self._close()
            return
        if not self._is_draining:
            self._is_draining = True
            self._edge.stop_accepting()
            self._edge.drain()
        if not (grace and await self._become_idle(grace)):
            for call in tuple(self._calls.values()):
                call.finish(grpc.StatusCode.UNAVAILABLE, STOPPED)
                if call.task is not None:
                    call.task.cancel()
            if self._batch_handler is not None:
                self._batch_handler.stop()
            await self._become_idle(FLUSH_S_MAX)
        await self._close()

    async def _become_idle(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self._edge.open_calls() or self._calls or self._answers:
                    await self._clock.sleep(DRAIN_POLL_MS)
        except TimeoutError:
            return False
        return True

    async def _close(self) -> None:
        if self._stopped is not None:
            await asyncio.shield(self._stopped)
            return
        self._stopped = self._loop.create_future()
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._edge.fileno())
        self._flush()
        await asyncio.to_thread(self._edge.close)  # it waits for clients that still read
        for call in tuple(self._calls.values()):
            call.cancel()
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._stopped.set_result(None)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Returns whether the time was over before the server had stopped."""
        if self._stopped is None:
            raise RuntimeError("only a server that stops can be waited for")
        done, _ = await asyncio.wait([self._stopped], timeout=timeout)
        return not done


def _describe_fault(error: BaseException) -> str:
    """What the caller is told about a fault of this program; the log tells the rest."""
    logger.error("a handler failed", exc_info=error)
    return f"Unexpected {type(error).__name__}; the server's log has more"
