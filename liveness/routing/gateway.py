"""The entrance to routing: each call is served by this process or forwarded to the owner of its shard.

A node asks `MethodRouter.is_local` for every call; for a shard of its own this is one table lookup. Other calls are
forwarded, retried while the shard moves, and answered as the owner answered. A frontend has no shards and forwards every call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from liveness.clock import Clock
from liveness.domain.errors import NoNodeReachable
from liveness.domain.keys import shard_of
from liveness.routing import rpc_failures
from liveness.routing.batches import HEARTBEATS_PER_CALL_MAX, Batch
from liveness.routing.channels import ChannelPool
from liveness.routing.coalescing import BATCH_BYTES_MAX, Coalescer
from liveness.routing.forwarding import (
    Forwarder,
    RecordTry,
    RpcResponse,
    caller_metadata,
    ignore_try,
    metadata_for_caller,
)
from liveness.routing.owner_connection import OpenStream
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import RoutingKind, RoutingRule, rule_of
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.routing.rpc_failures import RpcFailure
from liveness.routing.stream_proxy import StreamProxy
from liveness.rpc.call_metadata import metadata_of
from liveness.rpc.tracing import CallTracer
from liveness.security.forwarded_callers import PRINCIPAL_HEADER, encoded_principal
from liveness.v1.service_pb2 import GetServerInfoResponse

Context = grpc.aio.ServicerContext[Any, Any]
Serve = Callable[[Any], Awaitable[Any]]

GET_SERVER_INFO = "/liveness.v1.LivenessService/GetServerInfo"
SHARD_MOVED_BYTES = rpc_failures.SHARD_MOVED.encode()
_BATCHABLE_METADATA = frozenset({"traceparent", "tracestate", PRINCIPAL_HEADER})
"""Metadata that is dropped when a heartbeat joins a batch, which says itself whose heartbeats it has. With tracing on, a traced
heartbeat is sent alone."""


class Gateway:
    def __init__(
        self,
        routes: RoutingTable,
        channels: ChannelPool,
        clock: Clock,
        *,
        own_node_id: str | None = None,
        owns_shard: Callable[[int], bool] = lambda shard_id: False,
        owns_all_shards: Callable[[], bool] = lambda: False,
        is_cut_off: Callable[[], bool] = lambda: False,
        open_local_stream: OpenStream | None = None,
        on_node_unreachable: Callable[[], None] = lambda: None,
        tracer: CallTracer | None = None,
        record_try: RecordTry = ignore_try,
        listener: str = "",
    ) -> None:
        """`listener`: of a frontend: what takes its calls in, edge or python. `own_node_id`: None in a frontend. `owns_all_shards`: true if batches need not be split. `is_cut_off`: true while this
        node cannot reach its database, so that another one answers calls better. `open_local_stream`: serves Relay in this
        process. `on_node_unreachable`: called when a node does not answer at its address. `tracer`: None if
        calls are not traced. `record_try`: called after each try to have a call served by a node."""
        self.routes = routes
        self.own_node_id = own_node_id
        self.owns_shard = owns_shard
        self.owns_all_shards = owns_all_shards
        self.is_cut_off = is_cut_off
        self.is_closing = False
        self.answer_suffixes = {GET_SERVER_INFO: GetServerInfoResponse(listener=listener).SerializeToString()}
        """By path: fields that this process puts in place of those of a node. Of a field that comes twice, the last counts."""
        self._channels = channels
        self.clock = clock
        self.tracer = tracer
        self.forwarder = Forwarder(
            routes,
            channels,
            clock,
            own_node_id=own_node_id or "",
            on_node_unreachable=on_node_unreachable,
            tracer=tracer,
            record_try=record_try,
        )
        self.coalescer = Coalescer(self.forwarder, clock)
        self.streams = StreamProxy(
            routes,
            channels,
            clock,
            own_node_id=own_node_id or "",
            open_local_stream=open_local_stream,
            owns_shard=owns_shard,
            on_node_unreachable=on_node_unreachable,
        )
        routes.on_change.append(self._on_routes_changed)

    def router(self, method: MethodDescriptor) -> MethodRouter:
        service = method.containing_service
        return MethodRouter(self, rule_of(service.name, method.name), f"/{service.full_name}/{method.name}")

    def unknown_router(self, path: str) -> MethodRouter:
        """The router of a method that only newer nodes know."""
        return MethodRouter(self, rule_of("", ""), path)

    def shard_of(self, namespace: str, name: str) -> int | None:
        count = self.routes.shard_count
        return shard_of(namespace, name, count) if count else None

    def retry_budget(self, rule: RoutingRule, context: Context) -> RetryBudget:
        return RetryBudget(
            self.clock,
            self.routes,
            context.time_remaining(),
            rule.wait_ms_max,
            is_batch=rule.kind is RoutingKind.HEARTBEAT_BATCH,
        )

    def send_streams_away(self) -> None:
        """End the clients' streams, so that clients that know other nodes go there. Owners do not count this as a disconnect
        of the workers."""
        self.streams.end_client_streams()

    def close_streams(self) -> None:
        """The first step of a shutdown: end all streams. Owners do not count this as a disconnect of the workers."""
        self.is_closing = True
        self.streams.close()
        self.forwarder.cancel_streams()

    async def close(self) -> None:
        await self.streams.wait_closed()
        await self.coalescer.close()
        await self._channels.close()

    def _on_routes_changed(self) -> None:
        routes = self.routes
        addresses = {member.address for member in routes.members()}
        self._channels.close_except(addresses | {owner.address for owner in routes.owners().values()})
        self.streams.on_routes_changed()


class MethodRouter:
    """Routes the calls of one method that clients made. Metadata of theirs cannot choose the node."""

    def __init__(self, gateway: Gateway, rule: RoutingRule, path: str) -> None:
        self.rule = rule
        self._gateway = gateway
        self._path = path
        self._shard_key = rule.shard_key
        self._answer_suffix = gateway.answer_suffixes.get(path, b"")

    def is_local(self, request: Any, context: Context) -> bool:
        """Whether this node serves the call itself, because it owns the shard."""
        gateway = self._gateway
        if gateway.own_node_id is None:
            return False
        if self._shard_key is not None:
            shard_id = gateway.shard_of(*self._shard_key(request))
            return shard_id is not None and gateway.owns_shard(shard_id)
        # `forward` splits a batch and serves the local part of it.
        return self.rule.kind is not RoutingKind.HEARTBEAT_BATCH and not gateway.is_cut_off()

    def is_local_only(self, context: Context) -> bool:
        """Whether the caller wants the answer for this node's shards only. Clients cannot ask for that."""
        return False

    def can_forward(self, context: Context) -> bool:
        """Whether this node may forward a call whose shard it does not own any more."""
        return True

    # -- unary

    def can_batch(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether heartbeats with this metadata may be sent together with those of others."""
        return all(name in _BATCHABLE_METADATA for name, _ in caller_metadata(metadata))

    def batch_owner(self, request: Any) -> Owner | None:
        """The node to which a heartbeat may be sent together with others; None if none is known."""
        shard_id = self._shard_id(request)
        return None if shard_id is None else self._gateway.forwarder.next_owner(shard_id, None, None)

    async def send_together(
        self,
        owner: Owner,
        namespace: str,
        requests: Sequence[Any],
        principals: Sequence[bytes],
        remaining_s: float | None,
    ) -> list[RpcResponse | RpcFailure]:
        """Send heartbeats to their owner, once. `principals`: who sent each of them, encoded. `remaining_s`: until the last deadline;
        None if one has no deadline."""
        gateway = self._gateway
        timeout_s = RetryBudget(gateway.clock, gateway.routes, remaining_s).timeout_s()
        bodies = [request.SerializeToString() for request in requests]
        return await gateway.coalescer.send_all(owner, namespace, bodies, timeout_s, principals)

    async def forward(
        self,
        request: Any,
        context: Context,
        serve: Serve | None,
        tried: tuple[Owner, RpcFailure] | None = None,
    ) -> Any:
        """Return the owner's answer. `serve` is called if this node has become the owner. `tried`: how the first try
        failed, if it was made already."""
        kind = self.rule.kind
        if kind is RoutingKind.HEARTBEAT_BATCH and 0 < len(request.heartbeats) <= HEARTBEATS_PER_CALL_MAX:
            return await self._forward_batch(request, context, serve)
        if kind is RoutingKind.HEARTBEAT_BATCH and serve is not None:
            return await serve(request)
        metadata = caller_metadata(metadata_of(context))
        retry_budget = self._gateway.retry_budget(self.rule, context)
        await self._wait_for_shard_count(retry_budget)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        can_batch = (
            kind is RoutingKind.HEARTBEAT
            and request.HasField("heartbeat")
            and len(body) <= BATCH_BYTES_MAX
            and all(name in _BATCHABLE_METADATA for name, _ in metadata)
            and not (self._gateway.tracer is not None and self._gateway.tracer.has_current_span)
        )
        forwarder, coalescer = self._gateway.forwarder, self._gateway.coalescer

        async def send_single(owner: Owner) -> RpcResponse | RpcFailure:
            return await forwarder.send(self._path, body, owner, metadata, retry_budget.timeout_s())

        async def send_batched(owner: Owner) -> RpcResponse | RpcFailure:
            return await coalescer.send(
                owner, request.namespace, body, retry_budget.timeout_s(), encoded_principal()
            )

        outcome = await forwarder.send_until_served(
            self._shard_id(request),
            self.rule.retry_safety,
            retry_budget,
            send_batched if can_batch else send_single,
            self._gateway.owns_shard,
            tried,
        )
        if outcome is None:
            assert serve is not None, "only a node has shards of its own"
            return await serve(request)
        if isinstance(outcome, RpcResponse) and self._answer_suffix:
            outcome = outcome._replace(body=outcome.body + self._answer_suffix)
        return await _reply(context, outcome)

    def _shard_id(self, request: Any) -> int | None:
        return None if self._shard_key is None else self._gateway.shard_of(*self._shard_key(request))

    async def _wait_for_shard_count(self, retry_budget: RetryBudget) -> None:
        # A frontend learns the number of shards when it first reaches a node.
        routes = self._gateway.routes
        while not routes.shard_count:
            if not await retry_budget.wait():
                raise NoNodeReachable

    # -- batches

    async def _forward_batch(self, request: Any, context: Context, serve: Serve | None) -> Any:
        gateway = self._gateway
        served = None
        if serve is not None and gateway.owns_all_shards():
            served = await serve(request)
            if SHARD_MOVED_BYTES not in served:
                return served
        retry_budget = gateway.retry_budget(self.rule, context)
        await self._wait_for_shard_count(retry_budget)
        batch = Batch(request, gateway.forwarder, gateway.routes, gateway.owns_shard, serve)
        if served is None and serve is not None and batch.is_all_local:
            served = await serve(request)
            if SHARD_MOVED_BYTES not in served:
                return served
        metadata = caller_metadata(metadata_of(context))
        outcome = await batch.forward(metadata, retry_budget, served)
        if isinstance(outcome, RpcFailure):
            return await _reply(context, outcome)
        return await _reply(
            context, RpcResponse(outcome, tuple(batch.initial_metadata), tuple(batch.trailing_metadata))
        )

    # -- streams

    async def forward_stream(self, request: Any, context: Context) -> AsyncIterator[bytes]:
        """Forward the messages of a node's stream. A failure after the first message goes to the caller, which knows how to
        resume."""
        forwarder = self._gateway.forwarder
        metadata = caller_metadata(metadata_of(context))
        retry_budget = self._gateway.retry_budget(self.rule, context)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        failure, failed_owner = None, None
        while True:
            owner = forwarder.next_owner(None, failed_owner, failure)
            if owner is not None:
                failure, has_started = None, False
                stream = forwarder.stream(self._path, body, owner, metadata, context.time_remaining())
                async for part in stream:
                    if isinstance(part, bytes):
                        has_started = True
                        yield part
                    elif isinstance(part, RpcFailure):
                        failure = part
                    elif not has_started:
                        await _send_initial_metadata(context, part)
                    else:
                        context.set_trailing_metadata(metadata_for_caller(part))
                if failure is None:
                    return
                if has_started or self._gateway.is_closing or not failure.can_retry(self.rule.retry_safety):
                    break
                forwarder.update_owner(None, owner, failure)
                failed_owner = owner
                if forwarder.next_owner(None, failed_owner, failure) is not None:
                    continue
            if not await retry_budget.wait():
                break
            failed_owner = None
        await _reply(context, failure or rpc_failures.from_error(forwarder.unavailable_error(None)))

    def forward_attach(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return self._gateway.streams.attach(requests)


async def _reply(context: Context, outcome: RpcResponse | RpcFailure) -> bytes:
    if outcome.initial_metadata:
        await _send_initial_metadata(context, outcome.initial_metadata)
    trailing_metadata = metadata_for_caller(outcome.trailing_metadata)
    if isinstance(outcome, RpcFailure):
        context.set_code(outcome.code)  # for the count of calls
        await context.abort(outcome.code, outcome.message, trailing_metadata=trailing_metadata)
        raise AssertionError("abort raises")
    if trailing_metadata:
        context.set_trailing_metadata(trailing_metadata)
    return outcome.body


async def _send_initial_metadata(context: Context, metadata: rpc_failures.Metadata) -> None:
    if own := metadata_for_caller(metadata):
        await context.send_initial_metadata(own)
