"""Serves unary calls: who may call, limits, the audit, routing, and how an error becomes a status. One body for calls that are served
one by one and for those that the heartbeat lane serves together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from liveness.clock import stopwatch
from liveness.domain.errors import (
    InvalidRequest,
    LivenessError,
    MalformedRequest,
    ShardMoved,
    StoreFull,
    Unavailable,
)
from liveness.routing.forwarded_calls import ForwardedCallRouter
from liveness.routing.gateway import MethodRouter
from liveness.routing.routing_table import Owner
from liveness.routing.rpc_failures import RpcFailure
from liveness.rpc.call_metadata import metadata_of
from liveness.rpc.status import code_of, status_of
from liveness.rpc_details import DETAILS_KEY
from liveness.security.authorization import authorize
from liveness.security.principal import current_caller
from liveness.security.redaction import redact_error
from liveness.server.access import MethodGuard, RefusedItems
from liveness.server.all_nodes import is_local_only
from liveness.server.oversight import MethodOversight, request_bytes
from liveness.server.shutdown_gate import ShutdownGate
from liveness.slices import end_slice
from liveness.store.errors import NoSpaceLeft, StoreError
from liveness.telemetry.call_stats import OK, MethodStats

logger = structlog.get_logger("liveness.server")

BYTES_PER_SLICE_MAX = 128 * 1024
"""Parsing a larger request may take several milliseconds."""

WaitAllDurable = Callable[[], Awaitable[None]]
AdmitNamespace = Callable[[str], None]


def serialize(answer: Message | bytes) -> bytes:
    """Some handlers return serialized messages."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


class UnaryMethod:
    """Serves the calls of one unary method."""

    def __init__(
        self,
        serve: Callable[[Any], Awaitable[Message | bytes]] | None,
        wait_all_durable: WaitAllDurable,
        admit: AdmitNamespace | None,
        router: MethodRouter | ForwardedCallRouter | None,
        gate: ShutdownGate,
        guard: MethodGuard | None,
        oversight: MethodOversight | None,
    ) -> None:
        self.serve = serve
        self.admit = admit
        self.router = router
        self.gate = gate
        self.guard = guard
        self.oversight = oversight
        self._wait_all_durable = wait_all_durable

    async def call(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        guard, oversight = self.guard, self.oversight
        try:
            if self.gate.is_closed:
                await self.gate.refuse()
            if request_bytes.get() > BYTES_PER_SLICE_MAX:
                await end_slice()  # parsing it was one
            if guard is None:
                if oversight is not None:
                    oversight.admit_anonymous(context)
                if isinstance(request, MalformedRequest):
                    raise request
                return await self._serve_call(request, context)
            # Without `identify`, which costs another coroutine: this runs for every heartbeat.
            caller = guard.known(metadata_of(context)) or await guard.authenticate(context)
            current_caller.set(caller)
            if oversight is not None:
                oversight.admit(caller, context)
            if isinstance(request, MalformedRequest):
                raise request
            authorize(caller.principal, guard.rule, request)
            if guard.rule.is_batch and (split := guard.split_batch(caller, request)) is not None:
                return await self._serve_split(split, context)
            if guard.may_wait_long:
                answer = await guard.unless_revoked(self._serve_call(request, context), caller)
            else:
                answer = await self._serve_call(request, context)
            return answer if isinstance(answer, bytes) else guard.redact(answer, caller.principal)
        except (LivenessError, StoreError) as error:
            await self._fail(error, request, context)
        raise AssertionError("abort raises")

    async def go_on_after(
        self,
        error: LivenessError | StoreError,
        request: Any,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Message | bytes:
        """Serve a call to its end that was tried together with others, and failed with `error`."""
        try:
            if isinstance(error, ShardMoved) and self.router is not None and self.router.can_forward(context):
                return await self.router.forward(request, context, self.serve)  # type: ignore[no-any-return]
            raise error
        except (LivenessError, StoreError) as failure:
            await self._fail(failure, request, context)
        raise AssertionError("abort raises")

    async def go_on_elsewhere(
        self, owner: Owner, failure: RpcFailure, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Message | bytes:
        """Serve a call to its end that was sent to a node together with others, and failed there."""
        assert isinstance(self.router, MethodRouter), "a call that was forwarded here goes no further"
        try:
            return await self.router.forward(request, context, self.serve, (owner, failure))  # type: ignore[no-any-return]
        except (LivenessError, StoreError) as error:
            await self._fail(error, request, context)
        raise AssertionError("abort raises")

    async def _fail(
        self,
        error: LivenessError | StoreError,
        request: Any,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        if isinstance(error, StoreError):
            error = store_unavailable(error)
        elif not isinstance(error, InvalidRequest):
            if self.oversight is not None:
                self.oversight.note_error(error, request, context)
            error = await _after_durable(error, self._wait_all_durable)
        await abort_with(context, error)

    async def _serve_split(self, split: RefusedItems, context: Any) -> Message:
        if self.oversight is not None:
            self.oversight.note_denied_items(split.refused.values(), split.request.namespace, context)
        allowed = split.allowed()
        answer = await self._serve_call(allowed, context) if allowed.heartbeats else b""
        return split.merge(serialize(answer))

    async def _serve_call(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        if self.admit is not None:
            self.admit(request.namespace)
        handler, oversight = self.serve, self.oversight
        if oversight is not None and oversight.is_audited:
            oversight.set_origin(context)
            if handler is not None:
                handler = partial(oversight.serve, handler, context)
        if self.router is None:
            return await handler(request)  # type: ignore[misc]
        return await _route_call(self.router, request, context, handler)


def counted(
    call: Callable[..., Awaitable[Message | bytes]], stats: MethodStats, gate: ShutdownGate
) -> Callable[..., Awaitable[Message | bytes]]:
    calls = gate.calls

    async def call_counted(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message | bytes:
        seconds = stopwatch()
        calls.count += 1
        try:
            answer = await call(request, context)
        except BaseException as error:
            stats.record(final_code(error, context), seconds())
            raise
        finally:
            calls.count -= 1
        stats.record(OK, seconds())
        return answer

    return call_counted


def final_code(error: BaseException, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The status code of a call whose handler raised `error`. Whoever aborts a call sets the context's code first."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name


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


async def _after_durable(error: LivenessError, wait_all_durable: WaitAllDurable) -> LivenessError:
    try:
        await wait_all_durable()
    except Unavailable as unavailable:
        return unavailable
    return error


def store_unavailable(error: StoreError) -> Unavailable:
    logger.warning("request failed", why=str(error))
    return StoreFull(detail=error.detail) if isinstance(error, NoSpaceLeft) else Unavailable()


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: LivenessError) -> None:
    error = redact_error(error)
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    code = code_of(error)
    context.set_code(code)  # for the count of calls
    await context.abort(code, str(error), trailing_metadata=details)
