"""The metadata of the call that is being served, converted once.

gRPC makes Python strings of all metadata each time that a context is asked for it, and once more to find the handler of a call.
That last result is kept for the call. gRPC finds the handler and runs it in the same task, one for each call, so that no call
sees the metadata of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import grpc

Pairs = Iterable[tuple[str, str | bytes]]

_call_metadata: ContextVar[Pairs | None] = ContextVar("call_metadata", default=None)


def metadata_of(context: Any) -> Pairs:
    """The metadata of the call with this context, which must be the one that is being served."""
    kept = _call_metadata.get()
    return (context.invocation_metadata() or ()) if kept is None else kept


def keep_metadata(metadata: Pairs) -> None:
    """Keep the metadata of the call that this task serves."""
    _call_metadata.set(metadata)


class ServiceHandlers(grpc.ServiceRpcHandler):
    """The handlers of a service's methods."""

    def __init__(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._service = service
        self.by_path = {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def service_name(self) -> str:
        return self._service

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = self.by_path.get(handler_call_details.method)
        if handler is not None:
            _call_metadata.set(handler_call_details.invocation_metadata)
        return handler
