"""Passes every call on to Temporal, whatever its service, and lets `interceptors` see the few that say something about
workers. Bytes, metadata, deadlines, cancellation and errors pass unchanged in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

import grpc

from liveness.bridges.temporal.messages import SERVICE
from liveness.bridges.temporal.statistics import BridgeStatistics
from liveness.bridges.temporal.unary_methods import UNARY_METHODS
from liveness.bridges.temporal.upstream import Metadata, Upstream
from liveness.clock import stopwatch

_TRANSPORT_METADATA = frozenset(
    {
        "user-agent",
        "te",
        "content-type",
        "grpc-accept-encoding",
        "grpc-encoding",
        "grpc-timeout",
        "grpc-status",
        "grpc-message",
    }
)

OTHER_METHODS = "other"
"""The name in metrics of all methods that are not known."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Call:
    """A unary call on its way."""

    __slots__ = (
        "_since_asked",
        "_upstream",
        "_upstream_s",
        "context",
        "metadata",
        "method",
        "peer",
        "request",
    )

    def __init__(self, upstream: Upstream, method: str, request: bytes, context: Context) -> None:
        self._upstream = upstream
        self.method = method
        self.request = request
        self.context = context
        self.peer = context.peer()
        self.metadata = passed_metadata(context.invocation_metadata())
        self._upstream_s = 0.0
        self._since_asked: Callable[[], float] | None = None
        """Tells how long Temporal has been asked; None while it is not."""

    @property
    def upstream_s(self) -> float:
        """How long Temporal took, or has taken so far: a call whose client is gone may end before its question to Temporal."""
        return self._upstream_s + (0.0 if self._since_asked is None else self._since_asked())

    async def pass_on(self) -> bytes:
        """Make the call at Temporal and return its answer. Raises AioRpcError."""
        elapsed = self._since_asked = stopwatch()
        context, channel = self.context, self._upstream.channel(self.peer)
        upstream_call = channel.unary_method(self.method)(
            self.request,
            timeout=context.time_remaining(),
            metadata=self._upstream.passed_metadata(self.metadata),
        )
        channel.open_calls += 1
        try:
            answer: bytes = await upstream_call
            self._upstream.note_answer(channel)
            if initial := passed_metadata(await upstream_call.initial_metadata()):
                await context.send_initial_metadata(initial)
            if trailing := passed_metadata(await upstream_call.trailing_metadata()):
                context.set_trailing_metadata(trailing)
            return answer
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._upstream.note_unavailable(self.peer, error.details() or "")
            raise
        except asyncio.CancelledError:
            upstream_call.cancel()
            raise
        finally:
            channel.open_calls -= 1
            self._upstream_s += elapsed()
            self._since_asked = None

    async def ask(self, method: str, request: bytes) -> bytes:
        """Make another call at Temporal with the caller's credential; its answer is for the bridge. Raises AioRpcError."""
        channel = self._upstream.channel(self.peer)
        answer: bytes = await channel.unary_method(method)(
            request,
            timeout=self.context.time_remaining(),
            metadata=self._upstream.passed_metadata(self.metadata),
        )
        return answer


Interceptor: TypeAlias = Callable[[Call], Awaitable[bytes]]


class TemporalProxy(grpc.GenericRpcHandler):
    def __init__(
        self, upstream: Upstream, statistics: BridgeStatistics, interceptors: Mapping[str, Interceptor]
    ) -> None:
        """`interceptors`: by the name of a method of the workflow service."""
        self._upstream = upstream
        self._statistics = statistics
        intercepted = {SERVICE + name: handler for name, handler in interceptors.items()}
        # Made once, not for each call.
        self._unary_handlers = {
            method: self._unary_handler(method, intercepted.get(method, Call.pass_on))
            for method in UNARY_METHODS | intercepted.keys()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method
        if (handler := self._unary_handlers.get(method)) is not None:
            return handler

        async def pass_stream(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for message in self._pass_stream(method, requests, context):
                yield message

        # On the wire, a unary call is a stream of one message.
        return grpc.stream_stream_rpc_method_handler(pass_stream)

    def _unary_handler(self, method: str, interceptor: Interceptor) -> grpc.RpcMethodHandler[Any, Any]:
        name = method.rpartition("/")[2]
        upstream, calls, added_s = self._upstream, self._statistics.calls, self._statistics.added_s

        async def pass_unary(request: bytes, context: Context) -> bytes:
            elapsed = stopwatch()
            call = Call(upstream, method, request, context)
            code = grpc.StatusCode.CANCELLED
            try:
                answer = await interceptor(call)
                code = grpc.StatusCode.OK
                return answer
            except grpc.aio.AioRpcError as error:
                code = error.code()
                await _abort(context, error)
                raise
            finally:
                calls[name, code.name] += 1
                added_s.observe(max(elapsed() - call.upstream_s, 0.0))

        return grpc.unary_unary_rpc_method_handler(pass_unary)

    async def _pass_stream(
        self, method: str, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        peer = context.peer()
        channel = self._upstream.channel(peer)
        upstream_call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.channel.stream_stream(method)(
            requests,  # type: ignore[arg-type]  # as above
            timeout=context.time_remaining(),
            metadata=self._upstream.passed_metadata(passed_metadata(context.invocation_metadata())),
        )
        channel.open_calls += 1
        code = grpc.StatusCode.CANCELLED
        try:
            await _pass_initial(context, await upstream_call.initial_metadata())
            async for message in upstream_call:
                yield message
            trailing = passed_metadata(await upstream_call.trailing_metadata())
            if trailing:
                context.set_trailing_metadata(trailing)
            code = await upstream_call.code()
            if code is not grpc.StatusCode.OK:
                await context.abort(code, await upstream_call.details() or "", trailing)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAVAILABLE:
                self._upstream.note_unavailable(peer, error.details() or "")
            await _abort(context, error)
        finally:
            channel.open_calls -= 1
            upstream_call.cancel()
            # Names of methods come from clients: those of unknown ones are not kept apart.
            self._statistics.calls[OTHER_METHODS, code.name] += 1


def passed_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """The metadata that programs set, without that of their gRPC libraries."""
    if not metadata:
        return ()
    return tuple([item for item in metadata if item[0] not in _TRANSPORT_METADATA])


async def _pass_initial(context: Context, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    if passed := passed_metadata(metadata):
        await context.send_initial_metadata(passed)


async def _abort(context: Context, error: grpc.aio.AioRpcError) -> None:
    try:
        await _pass_initial(context, error.initial_metadata())
    except (asyncio.InvalidStateError, grpc.aio.UsageError):
        pass  # it was sent before
    await context.abort(error.code(), error.details() or "", passed_metadata(error.trailing_metadata()))
