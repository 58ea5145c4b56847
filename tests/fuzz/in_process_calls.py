"""Calls the handlers that a server registered with gRPC, without a network: several thousand calls a second.

It does what gRPC does with a call: parse the request, run the handler, serialize the answer, and turn an exception
that the handler lets out into UNKNOWN.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc

from liveness.rpc_details import details_from_trailer
from tests.fuzz.grpc_inputs import GrpcInput

PEER = "ipv4:127.0.0.1:40000"
GET_ROUTES = "/liveness.v1.ClusterService/GetRoutes"


class Aborted(Exception):
    """Ends a handler, as gRPC's own does."""


class CallContext:
    """What gRPC gives to a handler."""

    def __init__(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._metadata = tuple(metadata)
        self._code: grpc.StatusCode | None = None
        self.status = grpc.StatusCode.OK
        self.details = ""
        self.reason = ""
        """The machine-readable reason of an error; empty if the handler gave none."""

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def peer(self) -> str:
        return PEER

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def time_remaining(self) -> float | None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    async def send_initial_metadata(self, metadata: Any) -> None: ...

    def cancelled(self) -> bool:
        return False

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.status, self.details = code, details
        self.reason = details_from_trailer(code, trailing_metadata).reason
        raise Aborted


class RecordedListeners:
    """Gives a server its listeners, and remembers the handlers that it registers with each."""

    def __init__(self) -> None:
        self._handlers: list[list[grpc.GenericRpcHandler]] = []
        self._found: dict[tuple[str, bool], grpc.GenericRpcHandler | None] = {}

    def listener(self, *arguments: Any, **options: Any) -> grpc.aio.Server:
        server, handlers = grpc.aio.server(*arguments, **options), list[grpc.GenericRpcHandler]()
        register = server.add_generic_rpc_handlers

        def add_generic_rpc_handlers(added: Iterable[grpc.GenericRpcHandler]) -> None:
            handlers.extend(kept := tuple(added))
            register(kept)

        server.add_generic_rpc_handlers = add_generic_rpc_handlers  # type: ignore[method-assign, assignment]
        self._handlers.append(handlers)
        return server

    def find(self, path: str, metadata: Sequence[Any], *, on_cluster_port: bool) -> Any:
        """Return the handler of a method, as gRPC asks for it with each call; None if that port does not serve it."""
        if (path, on_cluster_port) not in self._found:
            self._found[path, on_cluster_port] = self._find(path, on_cluster_port=on_cluster_port)
        found = self._found[path, on_cluster_port]
        return None if found is None else found.service(_details(path, metadata))

    def _find(self, path: str, *, on_cluster_port: bool) -> grpc.GenericRpcHandler | None:
        for handlers in self._handlers:
            if (_serving(handlers, GET_ROUTES) is not None) is on_cluster_port:
                return _serving(handlers, path)
        return None


def _serving(handlers: Sequence[grpc.GenericRpcHandler], path: str) -> grpc.GenericRpcHandler | None:
    return next((each for each in handlers if each.service(_details(path, ())) is not None), None)


def _unchanged(message: bytes) -> bytes:
    return message


def _details(path: str, metadata: Sequence[Any]) -> Any:
    return SimpleNamespace(method=path, invocation_metadata=tuple(metadata))


async def call(
    listeners: RecordedListeners, given: GrpcInput, metadata: Sequence[tuple[str, str | bytes]]
) -> CallContext:
    """Make one call; the client leaves a stream of answers after some of them. Exceptions of the handler are let out."""
    context = CallContext(metadata)
    handler = listeners.find(given.path, metadata, on_cluster_port=given.on_cluster_port)
    if handler is None:
        context.status = grpc.StatusCode.UNIMPLEMENTED
        return context
    parse = handler.request_deserializer or _unchanged
    serialize = handler.response_serializer or _unchanged
    try:
        if handler.unary_unary is not None:
            serialize(await handler.unary_unary(parse(given.requests[0]), context))
            return context
        if handler.stream_stream is not None:

            async def requests() -> AsyncIterator[Any]:
                for request in given.requests:
                    yield parse(request)

            answers = handler.stream_stream(requests(), context)
        else:
            answers = handler.unary_stream(parse(given.requests[0]), context)
        left = given.answers_max
        try:
            async for answer in answers:
                serialize(answer)
                left -= 1
                if not left:
                    break
        finally:
            await answers.aclose()
    except Aborted:
        pass
    return context
