"""What the two kinds of peer on the cluster's port may call. Their certificates say of which kind they are.

A node may call everything. A frontend may learn the routes, ask who a client is, and forward clients' calls and streams; it
may not take part in what nodes agree upon among themselves. Without TLS, which is possible on loopback only, every peer counts as a node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.domain.errors import PeerNotAllowed
from liveness.rpc.status import code_of, status_of
from liveness.rpc_details import DETAILS_KEY
from liveness.security.peer_certificates import FRONTEND_URI, NODE_URI, peer_uris

logger = structlog.get_logger("liveness.server")

BETWEEN_NODES = "/liveness.v1.ClusterService/"
FRONTEND_METHODS = frozenset(f"{BETWEEN_NODES}{name}" for name in ("GetRoutes", "Relay", "Authenticate"))

Context = grpc.aio.ServicerContext[Any, Any]


class PeerGuard:
    """The cluster's listener, as far as services are registered with it: it refuses peers before their calls are served."""

    def __init__(
        self, server: grpc.aio.Server, clock: Clock, on_refused: Callable[[str], None] = lambda peer: None
    ) -> None:
        """`on_refused`: called with the address of a peer that was refused."""
        self._server = server
        self._on_refused = on_refused
        self._warning = RepeatedWarning(logger, "a peer was refused on the cluster's port", clock)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(_Guarded(self, handler) for handler in handlers))

    async def check(self, method: str, context: Context) -> None:
        uris = peer_uris(context.auth_context())
        if NODE_URI in uris:
            return
        is_frontend = FRONTEND_URI in uris
        if is_frontend and (not method.startswith(BETWEEN_NODES) or method in FRONTEND_METHODS):
            return
        error = PeerNotAllowed(kind="frontend" if is_frontend else "stranger", method=method)
        self._on_refused(context.peer())
        self._warning.warn(peer=context.peer(), kind=error.kind, method=method)
        details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
        await context.abort(code_of(error), str(error), trailing_metadata=details)


class _Guarded(grpc.GenericRpcHandler):
    def __init__(self, guard: PeerGuard, handler: grpc.GenericRpcHandler) -> None:
        self._guard = guard
        self._handler = handler

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = self._handler.service(handler_call_details)
        if handler is None:
            return None
        method, check = handler_call_details.method, self._guard.check

        async def answer(request: Any, context: Context) -> Any:
            await check(method, context)
            return await handler.unary_unary(request, context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            await check(method, context)
            serve = handler.stream_stream or handler.unary_stream
            async for message in serve(request, context):
                yield message

        parse, serialize = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(answer, parse, serialize)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(stream, parse, serialize)
        return grpc.stream_stream_rpc_method_handler(stream, parse, serialize)
