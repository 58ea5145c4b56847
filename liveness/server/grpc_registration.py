"""Registers services with gRPC: parses requests, calls handlers and turns errors into statuses, for every method."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from liveness.clock import stopwatch
from liveness.domain.errors import (
    InvalidRequest,
    LivenessError,
    MalformedRequest,
    ShardMoved,
    StoreFull,
    Unavailable,
)
from liveness.routing.forwarded_calls import ForwardedCallRouter, ForwardedCalls
from liveness.routing.gateway import Gateway, MethodRouter
from liveness.routing.routing_rules import RoutingKind
from liveness.rpc.call_metadata import ServiceHandlers, metadata_of
from liveness.rpc.status import code_of, status_of
from liveness.rpc.tracing import CallTracer, is_sampled
from liveness.rpc_details import DETAILS_KEY
from liveness.security.authorization import authorize
from liveness.security.principal import current_caller
from liveness.security.redaction import redact_error
from liveness.server.access import Authentication, MethodGuard, RefusedItems
from liveness.server.all_nodes import is_local_only
from liveness.server.oversight import MethodOversight, Oversight, request_bytes
from liveness.server.request_bounds import RequestBounds
from liveness.server.shutdown_gate import ShutdownGate
from liveness.store.errors import NoSpaceLeft, StoreError
from liveness.telemetry.call_stats import OK, CallStats, MethodStats

logger = structlog.get_logger("liveness.server")


WaitAllDurable = Callable[[], Awaitable[None]]


AdmitNamespace = Callable[[str], None]


def register_service(
    server: grpc.aio.Server,
    descriptor: ServiceDescriptor,
    service: object | None,
    wait_all_durable: WaitAllDurable,
    admit: AdmitNamespace | None = None,
    gateway: Gateway | ForwardedCalls | None = None,
    tracer: CallTracer | None = None,
    calls: CallStats | None = None,
    gate: ShutdownGate | None = None,
    authentication: Authentication | None = None,
    oversight: Oversight | None = None,
) -> None:
    """Serve each method of the descriptor with the service's method of the same name in snake case.

    `wait_all_durable` waits until all state in memory is durable: an error is an answer too, and may rest on that state.
    `admit` refuses calls about a namespace that this server does not serve. `gateway` forwards calls about shards of
    other nodes, and all calls if there is no service, as in a frontend; `ForwardedCalls` serves what was forwarded here. `tracer` records sampled calls, `calls` counts all.
    `gate` refuses calls when the server stops. `authentication` says who calls; None if everybody may do everything.
    `oversight` limits and audits calls; None on the cluster's own services.
    """
    calls = calls or CallStats()
    gate = gate or ShutdownGate()
    handlers = {
        method.name: _make_handler(
            method,
            None if service is None else getattr(service, _snake_case(method.name)),
            wait_all_durable,
            admit,
            None if gateway is None else gateway.router(method),
            tracer,
            calls.method(f"/{descriptor.full_name}/{method.name}"),
            gate,
            None if authentication is None else MethodGuard(authentication, method),
            None if oversight is None else oversight.method(method),
        )
        for method in descriptor.methods
    }
    server.add_generic_rpc_handlers((ServiceHandlers(descriptor.full_name, handlers),))


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _make_handler(
    method: MethodDescriptor,
    serve: Callable[..., Any] | None,
    wait_all_durable: WaitAllDurable,
    admit: AdmitNamespace | None,
    router: MethodRouter | ForwardedCallRouter | None,
    tracer: CallTracer | None,
    stats: MethodStats,
    gate: ShutdownGate,
    guard: MethodGuard | None,
    oversight: MethodOversight | None,
) -> grpc.RpcMethodHandler[Any, Any]:
    parse = _make_parser(GetMessageClass(method.input_type), RequestBounds(method))
    if method.client_streaming:
        if router is not None and router.rule.kind is RoutingKind.STREAM:
            serve = router.forward_attach
        return grpc.stream_stream_rpc_method_handler(
            _make_streaming(serve, None, router, stats, gate, guard, oversight, is_client_stream=True),
            parse,
            _serialize,
        )
    if "namespace" not in method.input_type.fields_by_name:
        admit = None
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _make_streaming(serve, admit, router, stats, gate, guard, oversight), parse, _serialize
        )
    call = _make_unary(serve, wait_all_durable, admit, router, gate, guard, oversight)
    if tracer is not None:
        call = _traced(call, tracer, f"/{method.containing_service.full_name}/{method.name}")
    return grpc.unary_unary_rpc_method_handler(_counted(call, stats, gate), parse, _serialize)


def _serialize(answer: Message | bytes) -> bytes:
    """Some handlers return serialized messages."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _make_parser(kind: type[Message], bounds: RequestBounds) -> Callable[[bytes], Message | MalformedRequest]:
    """The parser returns an error as a value, because gRPC would answer INTERNAL for a malformed request."""
    from_string, check = kind.FromString, bounds.check

    def parse(data: bytes) -> Message | MalformedRequest:
        request_bytes.set(len(data))
        if (error := check(data)) is not None:
            return error
        try:
            return from_string(data)
        except DecodeError as error:
            return MalformedRequest(detail=str(error))

    return parse


def _make_unary(
    serve: Callable[[Any], Awaitable[Message | bytes]] | None,
    wait_all_durable: WaitAllDurable,
    admit: AdmitNamespace | None,
    router: MethodRouter | ForwardedCallRouter | None,
    gate: ShutdownGate,
    guard: MethodGuard | None,
    oversight: MethodOversight | None,
) -> Callable[..., Awaitable[Message | bytes]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        try:
            if gate.is_closed:
                await gate.refuse()
            if guard is None:
                if oversight is not None:
                    oversight.admit_anonymous(context)
                if isinstance(request, MalformedRequest):
                    raise request
                return await serve_call(request, context)
            # Without `identify`, which costs another coroutine: this runs for every heartbeat.
            caller = guard.known(metadata_of(context)) or await guard.authenticate(context)
            current_caller.set(caller)
            if oversight is not None:
                oversight.admit(caller, context)
            if isinstance(request, MalformedRequest):
                raise request
            authorize(caller.principal, guard.rule, request)
            if guard.rule.is_batch and (split := guard.split_batch(caller, request)) is not None:
                return await serve_split(split, context)
            if guard.may_wait_long:
                answer = await guard.unless_revoked(serve_call(request, context), caller)
            else:
                answer = await serve_call(request, context)
            return answer if isinstance(answer, bytes) else guard.redact(answer, caller.principal)
        except InvalidRequest as error:
            await _abort(context, error)
        except LivenessError as error:
            if oversight is not None:
                oversight.note_error(error, request, context)
            await _abort(context, await _after_durable(error, wait_all_durable))
        except StoreError as error:
            await _abort(context, _store_unavailable(error))
        raise AssertionError("abort raises")

    async def serve_split(split: RefusedItems, context: Any) -> Message:
        if oversight is not None:
            oversight.note_denied_items(split.refused.values(), split.request.namespace, context)
        allowed = split.allowed()
        answer = await serve_call(allowed, context) if allowed.heartbeats else b""
        return split.merge(_serialize(answer))

    async def serve_call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        if admit is not None:
            admit(request.namespace)
        handler = serve
        if oversight is not None and oversight.is_audited:
            oversight.set_origin(context)
            if serve is not None:
                handler = partial(oversight.serve, serve, context)
        if router is None:
            return await handler(request)  # type: ignore[misc]
        return await _route_call(router, request, context, handler)

    return call


def _counted(
    call: Callable[..., Awaitable[Message | bytes]], stats: MethodStats, gate: ShutdownGate
) -> Callable[..., Awaitable[Message | bytes]]:
    calls = gate.calls

    async def counted(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        seconds = stopwatch()
        calls.count += 1
        try:
            answer = await call(request, context)
        except BaseException as error:
            stats.record(_final_code(error, context), seconds())
            raise
        finally:
            calls.count -= 1
        stats.record(OK, seconds())
        return answer

    return counted


def _final_code(error: BaseException, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The status code of a call whose handler raised `error`. Whoever aborts a call sets the context's code first."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name


class _CodeRecordingContext:
    """Records the status code of a call; the context itself does not expose it."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.code = grpc.StatusCode.UNKNOWN
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.code = code
        await self._context.abort(code, details, trailing_metadata)


def _traced(
    call: Callable[..., Awaitable[Message | bytes]], tracer: CallTracer, path: str
) -> Callable[..., Awaitable[Message | bytes]]:
    async def traced(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        metadata = metadata_of(context)
        if not is_sampled(metadata):
            return await call(request, context)
        with tracer.start_server_span(path, metadata) as span:
            if namespace := getattr(request, "namespace", ""):
                span.set_attributes(namespace=namespace)
            recording = _CodeRecordingContext(context)
            try:
                answer = await call(request, recording)
                recording.code = grpc.StatusCode.OK
                return answer
            finally:
                span.set_status_code(recording.code)

    return traced


async def _route_call(
    router: MethodRouter | ForwardedCallRouter,
    request: Any,
    context: grpc.aio.ServicerContext[Any, Any],
    serve: Any,
) -> Message | bytes:
    if router.is_local(request, context):
        is_local_only.set(router.is_local_only(context))
        try:
            return await serve(request)  # type: ignore[no-any-return]
        except ShardMoved:
            if not router.can_forward(context):
                raise
    return await router.forward(request, context, serve)  # type: ignore[no-any-return]


def _make_streaming(
    serve: Callable[[Any], AsyncIterator[Message | bytes]] | None,
    admit: AdmitNamespace | None,
    router: MethodRouter | ForwardedCallRouter | None,
    stats: MethodStats,
    gate: ShutdownGate,
    guard: MethodGuard | None,
    oversight: MethodOversight | None,
    *,
    is_client_stream: bool = False,
) -> Callable[..., AsyncIterator[Message | bytes]]:
    async def call(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Message | bytes]:
        try:
            with gate.calls:
                async for message in stream(request, context):
                    yield message
        except BaseException as error:
            stats.record(_final_code(error, context), None)
            raise
        stats.record(OK, None)

    async def stream(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Message | bytes]:
        held = ExitStack()
        try:
            if gate.is_closed:
                await gate.refuse()
            caller = None if guard is None else await guard.identify(context)
            if oversight is not None:
                if caller is None:
                    oversight.admit_anonymous(context)
                else:
                    oversight.admit(caller, context)
                held.enter_context(oversight.open_stream(caller, context))
            if isinstance(request, MalformedRequest):
                raise request
            if guard is not None and caller is not None:
                if is_client_stream:
                    request = guard.checked(request, caller)
                else:
                    guard.authorize(caller, request)
            if admit is not None:
                admit(request.namespace)
            if router is None or router.is_local(request, context) or router.rule.kind is RoutingKind.STREAM:
                messages = serve(request)  # type: ignore[misc]
            else:
                messages = router.forward_stream(request, context)
            if guard is None or caller is None:
                async for message in messages:
                    yield message
            elif is_client_stream:
                # Its requests end with the caller's credential, and its answers with its requests.
                async for message in messages:
                    if oversight is not None:
                        oversight.note_attached(message, context)
                    yield guard.redact(message, caller.principal)
            else:
                async for message in guard.until_revoked(messages, caller):
                    yield guard.redact(message, caller.principal)
        except LivenessError as error:
            if oversight is not None:
                oversight.note_error(error, request, context)
            await _abort(context, error)
        except StoreError as error:
            await _abort(context, _store_unavailable(error))
        finally:
            held.close()

    return call


async def _after_durable(error: LivenessError, wait_all_durable: WaitAllDurable) -> LivenessError:
    try:
        await wait_all_durable()
    except Unavailable as unavailable:
        return unavailable
    return error


def _store_unavailable(error: StoreError) -> Unavailable:
    logger.warning("request failed", why=str(error))
    return StoreFull(detail=error.detail) if isinstance(error, NoSpaceLeft) else Unavailable()


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: LivenessError) -> None:
    error = redact_error(error)
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    code = code_of(error)
    context.set_code(code)  # for the count of calls
    await context.abort(code, str(error), trailing_metadata=details)
