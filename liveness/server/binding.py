"""Ties services to gRPC: parse, call, turn refusals into statuses. Written once for every method of every service."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from liveness.domain.errors import InvalidRequest, LivenessError, MalformedRequest, Unavailable
from liveness.server.errors import DETAILS_KEY, code_of, status_of
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.server")

Settle = Callable[[], Awaitable[None]]


Admit = Callable[[str], None]


def bind(
    server: grpc.aio.Server,
    descriptor: ServiceDescriptor,
    service: object,
    settle: Settle,
    admit: Admit | None = None,
) -> None:
    """Serve each method of the descriptor with the service's method of the same name in snake case.

    `settle` waits until the state that a refusal may rest on is durable: a refusal, too, is an answer. `admit` refuses
    calls about a namespace that is not served here.
    """
    handlers = {
        method.name: _handler(method, getattr(service, _snake(method.name)), settle, admit)
        for method in descriptor.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _handler(
    method: MethodDescriptor, serve: Callable[..., Any], settle: Settle, admit: Admit | None
) -> grpc.RpcMethodHandler[Any, Any]:
    parse = _parser(GetMessageClass(method.input_type))
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_streaming(serve, None), parse, _serialize)
    if "namespace" not in method.input_type.fields_by_name:
        admit = None
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streaming(serve, admit), parse, _serialize)
    return grpc.unary_unary_rpc_method_handler(_unary(serve, settle, admit), parse, _serialize)


def _serialize(answer: Message | bytes) -> bytes:
    """Some services write their own bytes."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _parser(kind: type[Message]) -> Callable[[bytes], Message | MalformedRequest]:
    """gRPC would answer INTERNAL for what the client got wrong, so a failure travels to the handler as a value."""
    from_string = kind.FromString

    def parse(data: bytes) -> Message | MalformedRequest:
        try:
            return from_string(data)
        except DecodeError as error:
            return MalformedRequest(detail=str(error))

    return parse


def _unary(
    serve: Callable[[Any], Awaitable[Message | bytes]], settle: Settle, admit: Admit | None
) -> Callable[..., Awaitable[Message | bytes]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        try:
            if isinstance(request, MalformedRequest):
                raise request
            if admit is not None:
                admit(request.namespace)
            return await serve(request)
        except InvalidRequest as error:
            await _abort(context, error)
        except LivenessError as error:
            await _abort(context, await _settled(error, settle))
        except StoreError as error:
            await _abort(context, _store_trouble(error))
        raise AssertionError("abort raises")

    return call


def _streaming(
    serve: Callable[[Any], AsyncIterator[Message]], admit: Admit | None
) -> Callable[..., AsyncIterator[Message]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
        try:
            if isinstance(request, MalformedRequest):
                raise request
            if admit is not None:
                admit(request.namespace)
            async for message in serve(request):
                yield message
        except LivenessError as error:
            await _abort(context, error)
        except StoreError as error:
            await _abort(context, _store_trouble(error))

    return call


async def _settled(error: LivenessError, settle: Settle) -> LivenessError:
    try:
        await settle()
    except Unavailable as trouble:
        return trouble
    return error


def _store_trouble(error: StoreError) -> Unavailable:
    logger.warning("request failed", why=str(error))
    return Unavailable()


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: LivenessError) -> None:
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    await context.abort(code_of(error), str(error), trailing_metadata=details)
