"""Registers services with gRPC: parses requests, calls handlers and turns errors into statuses, for every method."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from liveness.domain.errors import (
    LivenessError,
    MalformedRequest,
)
from liveness.routing.forwarded_calls import ForwardedCallRouter, ForwardedCalls
from liveness.routing.gateway import Gateway, MethodRouter
from liveness.routing.routing_rules import RoutingKind
from liveness.rpc.call_metadata import ServiceHandlers, metadata_of
from liveness.rpc.tracing import CallTracer, is_sampled
from liveness.server.access import Authentication, MethodGuard
from liveness.server.edge_listener import EdgeServer
from liveness.server.heartbeat_lane import make_lane
from liveness.server.oversight import MethodOversight, Oversight, request_bytes
from liveness.server.request_bounds import RequestBounds
from liveness.server.shutdown_gate import ShutdownGate
from liveness.server.unary_calls import (
    AdmitNamespace,
    UnaryMethod,
    WaitAllDurable,
    abort_with,
    counted,
    final_code,
    serialize,
    store_unavailable,
)
from liveness.store.errors import StoreError
from liveness.telemetry.call_stats import OK, CallStats, MethodStats

logger = structlog.get_logger("liveness.server")


HEARTBEAT_PATH = "/liveness.v1.LivenessService/RecordWorkerHeartbeat"


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
            server,
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
    server: grpc.aio.Server,
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
            serialize,
        )
    if "namespace" not in method.input_type.fields_by_name:
        admit = None
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _make_streaming(serve, admit, router, stats, gate, guard, oversight), parse, serialize
        )
    unary = UnaryMethod(serve, wait_all_durable, admit, router, gate, guard, oversight)
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = unary.call if tracer is None else _traced(unary.call, tracer, path)
    if path == HEARTBEAT_PATH and isinstance(server, EdgeServer):
        lane = make_lane(server, unary, getattr(serve, "__self__", None), parse, stats, tracer)
        server.add_batch_handler(path, lane)
    return grpc.unary_unary_rpc_method_handler(counted(call, stats, gate), parse, serialize)


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
            stats.record(final_code(error, context), None)
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
            await abort_with(context, error)
        except StoreError as error:
            await abort_with(context, store_unavailable(error))
        finally:
            held.close()

    return call
