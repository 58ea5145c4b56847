"""Calls that only newer nodes know: carried to any of them as they are, whatever their shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from liveness.frontend import refusals
from liveness.frontend.channels import Channels
from liveness.frontend.forwarding import TO, Forwarder, callers_own, for_the_caller

PACKAGE = "/liveness.v1."
BETWEEN_NODES = "/liveness.v1.ClusterService/"


class Unknown(grpc.GenericRpcHandler):
    """Asked last, for methods that nobody else serves."""

    def __init__(self, forwarder: Forwarder, channels: Channels) -> None:
        self._forwarder = forwarder
        self._channels = channels

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        if not path.startswith(PACKAGE) or path.startswith(BETWEEN_NODES):
            return None

        async def carry(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[bytes]:
            async for message in self._carry(path, requests, context):
                yield message

        return grpc.stream_stream_rpc_method_handler(carry)

    async def _carry(
        self, path: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        owner = self._forwarder.next_owner(None, None, None)
        if owner is None:
            refusal = refusals.from_error(self._forwarder.nobody(None))
            await context.abort(refusal.code, refusal.message, trailing_metadata=refusal.trailing)
        call = self._channels.to(owner.address).stream(path)(
            requests,
            timeout=context.time_remaining(),
            metadata=(*callers_own(context.invocation_metadata()), (TO, owner.node_id)),
        )
        try:
            async for message in call:
                yield message
            context.set_trailing_metadata(for_the_caller(tuple(await call.trailing_metadata())))
        except grpc.aio.AioRpcError as error:
            trailing = for_the_caller(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "", trailing_metadata=trailing)
        finally:
            call.cancel()
