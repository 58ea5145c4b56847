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

from liveness.domain.errors import InvalidRequest, LivenessError, MalformedRequest, ShardMoved, Unavailable
from liveness.frontend.gateway import Gateway, Way
from liveness.frontend.rules import Kind
from liveness.server.everywhere import only_here
from liveness.statuses import DETAILS_KEY, code_of, status_of
from liveness.store.errors import StoreError
from liveness.tracing import Traces, is_followed

logger = structlog.get_logger("liveness.server")


Settle = Callable[[], Awaitable[None]]


Admit = Callable[[str], None]


def bind(
    server: grpc.aio.Server,
    descriptor: ServiceDescriptor,
    service: object | None,
    settle: Settle,
    admit: Admit | None = None,
    gateway: Gateway | None = None,
    traces: Traces | None = None,
) -> None:
    """Serve each method of the descriptor with the service's method of the same name in snake case.

    `settle` waits until the state that a refusal may rest on is durable: a refusal, too, is an answer. `admit` refuses
    calls about a namespace that is not served here. `gateway` carries calls about shards of others to them; without a
    service, as in a frontend, all calls. `traces` follows calls that are to be followed.
    """
    handlers = {
        method.name: _handler(
            method,
            None if service is None else getattr(service, _snake(method.name)),
            settle,
            admit,
            None if gateway is None else gateway.way(method),
            traces,
        )
        for method in descriptor.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _handler(
    method: MethodDescriptor,
    serve: Callable[..., Any] | None,
    settle: Settle,
    admit: Admit | None,
    way: Way | None,
    traces: Traces | None,
) -> grpc.RpcMethodHandler[Any, Any]:
    parse = _parser(GetMessageClass(method.input_type))
    if method.client_streaming:
        if way is not None and way.rule.kind is Kind.STREAM:
            serve = way.carry_attach
        return grpc.stream_stream_rpc_method_handler(_streaming(serve, None, way), parse, _serialize)
    if "namespace" not in method.input_type.fields_by_name:
        admit = None
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streaming(serve, admit, way), parse, _serialize)
    call = _unary(serve, settle, admit, way)
    if traces is not None:
        call = _followed(call, traces, f"/{method.containing_service.full_name}/{method.name}")
    return grpc.unary_unary_rpc_method_handler(call, parse, _serialize)


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
    serve: Callable[[Any], Awaitable[Message | bytes]] | None,
    settle: Settle,
    admit: Admit | None,
    way: Way | None,
) -> Callable[..., Awaitable[Message | bytes]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        try:
            if isinstance(request, MalformedRequest):
                raise request
            if admit is not None:
                admit(request.namespace)
            if way is None:
                return await serve(request)  # type: ignore[misc]
            return await _on_its_way(way, request, context, serve)
        except InvalidRequest as error:
            await _abort(context, error)
        except LivenessError as error:
            await _abort(context, await _settled(error, settle))
        except StoreError as error:
            await _abort(context, _store_trouble(error))
        raise AssertionError("abort raises")

    return call


class _Noting:
    """The context of a call, which does not tell afterwards how the call ended."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.code = grpc.StatusCode.UNKNOWN
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.code = code
        await self._context.abort(code, details, trailing_metadata)


def _followed(
    call: Callable[..., Awaitable[Message | bytes]], traces: Traces, path: str
) -> Callable[..., Awaitable[Message | bytes]]:
    async def follow(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        metadata = context.invocation_metadata()
        if not is_followed(metadata):
            return await call(request, context)
        with traces.serving(path, metadata) as followed:
            if namespace := getattr(request, "namespace", ""):
                followed.tell(namespace=namespace)
            noting = _Noting(context)
            try:
                answer = await call(request, noting)
                noting.code = grpc.StatusCode.OK
                return answer
            finally:
                followed.answered(noting.code)

    return follow


async def _on_its_way(
    way: Way, request: Any, context: grpc.aio.ServicerContext[Any, Any], serve: Any
) -> Message | bytes:
    if way.stays(request, context):
        only_here.set(way.is_asked_alone(context))
        try:
            return await serve(request)  # type: ignore[no-any-return]
        except ShardMoved:
            if not way.may_move(context):
                raise
    return await way.carry(request, context, serve)  # type: ignore[no-any-return]


def _streaming(
    serve: Callable[[Any], AsyncIterator[Message | bytes]] | None, admit: Admit | None, way: Way | None
) -> Callable[..., AsyncIterator[Message | bytes]]:
    async def call(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Message | bytes]:
        try:
            if isinstance(request, MalformedRequest):
                raise request
            if admit is not None:
                admit(request.namespace)
            if way is None or way.stays(request, context) or way.rule.kind is Kind.STREAM:
                messages = serve(request)  # type: ignore[misc]
            else:
                messages = way.carry_stream(request, context)
            async for message in messages:
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
