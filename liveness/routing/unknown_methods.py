"""Calls of methods that this frontend does not know, but newer nodes may: forwarded unchanged to any node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from liveness.domain.errors import LivenessError, NodeLost, Unauthenticated
from liveness.routing import rpc_failures
from liveness.routing.channels import ChannelPool
from liveness.routing.forwarding import TARGET_NODE_HEADER, Forwarder, caller_metadata, metadata_for_caller
from liveness.rpc.calls_in_flight import CallsInFlight
from liveness.security.authentication import CallerRegistry
from liveness.security.principal import current_caller
from liveness.security.revocation import until_revoked

PACKAGE = "/liveness.v1."
INTERNAL_SERVICE = "/liveness.v1.ClusterService/"
WRITE_FAILED = "Internal error from Core"
"""What gRPC says if a message could not be written."""


class UnknownMethodHandler(grpc.GenericRpcHandler):
    """The last handler: gRPC calls it for methods that no other handler serves."""

    path_prefix = PACKAGE
    """What the paths of its methods begin with."""

    def __init__(
        self,
        forwarder: Forwarder,
        channels: ChannelPool,
        calls: CallsInFlight,
        authentication: CallerRegistry | None = None,
    ) -> None:
        """`authentication`: says who calls, or refuses; None if callers are not asked. The node decides what a caller may do."""
        self._forwarder = forwarder
        self._channels = channels
        self._calls = calls
        self._authentication = authentication

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        if not path.startswith(PACKAGE) or path.startswith(INTERNAL_SERVICE):
            return None

        async def forward(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[bytes]:
            with self._calls:
                async for message in self._forward(path, requests, context):
                    yield message

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(
        self, path: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        authentication = self._authentication
        try:
            caller = None if authentication is None else await authentication.identify(context)
            current_caller.set(caller)
            owner = self._forwarder.next_owner(None, None, None)
            if owner is None:
                raise self._forwarder.unavailable_error(None)
        except LivenessError as error:
            await _abort(context, error)
        call = self._channels.channel_for(owner.address).stream(path)(
            requests,
            timeout=context.time_remaining(),
            metadata=(*caller_metadata(context.invocation_metadata()), (TARGET_NODE_HEADER, owner.node_id)),
        )
        try:
            answers = (
                call
                if authentication is None or caller is None
                else until_revoked(authentication, call, caller)
            )
            async for message in answers:
                yield message
            context.set_trailing_metadata(metadata_for_caller(tuple(await call.trailing_metadata())))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL and error.details() == WRITE_FAILED:
                # The node ended the call while its messages were written; how it ended did not get through.
                await _abort(context, NodeLost(node_id=owner.node_id, address=owner.address))
            trailing_metadata = metadata_for_caller(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "", trailing_metadata=trailing_metadata)
        except Unauthenticated as error:
            await _abort(context, error)
        finally:
            call.cancel()


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: LivenessError) -> NoReturn:
    failure = rpc_failures.from_error(error)
    await context.abort(failure.code, failure.message, trailing_metadata=failure.trailing_metadata)
    raise AssertionError("abort raises")
