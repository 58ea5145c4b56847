"""Where a call meets the way to its owner: mine, or carried there.

A node asks `Way.stays` for every call; for a shard of its own that is a look at a table. What is meant for another is
carried to it, tried again while the shard is on the move, and answered as its owner answered. A frontend has no shards,
so that nothing stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from liveness.clock import Clock
from liveness.domain.errors import NoNodeReachable, WrongNode
from liveness.domain.keys import shard_of
from liveness.frontend import refusals
from liveness.frontend.batches import HEARTBEATS_PER_CALL_MAX, Batch
from liveness.frontend.channels import Channels
from liveness.frontend.coalescing import BYTES_MAX, Coalescer
from liveness.frontend.forwarding import (
    Answer,
    Forwarder,
    addressee,
    callers_own,
    for_the_caller,
    is_asked_alone,
)
from liveness.frontend.links import Relay
from liveness.frontend.patience import Patience
from liveness.frontend.refusals import Refusal
from liveness.frontend.routes import Owner, Routes
from liveness.frontend.rules import Kind, Rule, rule_of
from liveness.frontend.streams import StreamGateway
from liveness.tracing import Traces

Context = grpc.aio.ServicerContext[Any, Any]
Serve = Callable[[Any], Awaitable[Any]]

MOVED_MARK = refusals.MOVED.encode()
_NOT_WORTH_TRAVELLING_ALONE = frozenset({"traceparent", "tracestate"})
"""Nobody follows one heartbeat through a batch. Where calls are followed, those that are travel alone all the same."""


class Gateway:
    def __init__(
        self,
        routes: Routes,
        channels: Channels,
        clock: Clock,
        *,
        me: str | None = None,
        is_mine: Callable[[int], bool] = lambda shard_id: False,
        all_mine: Callable[[], bool] = lambda: False,
        local: Relay | None = None,
        on_trouble: Callable[[], None] = lambda: None,
        traces: Traces | None = None,
    ) -> None:
        """`me`: this node's id; None in a frontend. `all_mine`: whether every shard is, so that no batch need be looked
        through. `local`: this node's side of Relay. `on_trouble`: a node was not where it should be; look again.
        `traces`: where calls are followed."""
        self.routes = routes
        self.me = me
        self.is_mine = is_mine
        self.all_mine = all_mine
        self.closing = False
        self._channels = channels
        self._clock = clock
        self.traces = traces
        self.forwarder = Forwarder(routes, channels, clock, me=me or "", on_trouble=on_trouble, traces=traces)
        self.coalescer = Coalescer(self.forwarder, clock)
        self.streams = StreamGateway(
            routes, channels, clock, me=me or "", local=local, is_mine=is_mine, on_trouble=on_trouble
        )
        routes.on_change.append(self._on_routes)

    def way(self, method: MethodDescriptor) -> Way:
        service = method.containing_service
        return Way(self, rule_of(service.name, method.name), f"/{service.full_name}/{method.name}")

    def unknown_way(self, path: str) -> Way:
        """Of a method that only newer nodes know."""
        return Way(self, rule_of("", ""), path)

    def shard_of(self, namespace: str, name: str) -> int | None:
        count = self.routes.shard_count
        return shard_of(namespace, name, count) if count else None

    def patience(self, rule: Rule, context: Context) -> Patience:
        return Patience(self._clock, context.time_remaining(), rule.wait_ms_max)

    def close_streams(self) -> None:
        """The first step of an end: clients are told, owners count nothing."""
        self.closing = True
        self.streams.close()
        self.forwarder.end_streams()

    async def close(self) -> None:
        await self.streams.wait_closed()
        await self._channels.close()

    def _on_routes(self) -> None:
        routes = self.routes
        places = {member.address for member in routes.members()}
        self._channels.keep(places | {owner.address for owner in routes.owners().values()})
        self.streams.follow_routes()


class Way:
    """Of one method's calls."""

    def __init__(self, gateway: Gateway, rule: Rule, path: str) -> None:
        self.rule = rule
        self._gateway = gateway
        self._path = path
        self._place = rule.place

    def stays(self, request: Any, context: Context) -> bool:
        """Whether this node serves the call itself: because it is its own to serve, or because it was told to."""
        gateway = self._gateway
        to = addressee(context.invocation_metadata())
        if to is not None:
            # It was forwarded once, and must not be again: two that take each other for the owner would go on for ever.
            if to != gateway.me:
                raise WrongNode(node_id=gateway.me or "a frontend", wanted=to)
            return True
        if gateway.me is None:
            return False
        if self._place is not None:
            shard_id = gateway.shard_of(*self._place(request))
            return shard_id is not None and gateway.is_mine(shard_id)
        # A batch is looked through when it is carried.
        return self.rule.kind is not Kind.HEARTBEATS

    def is_asked_alone(self, context: Context) -> bool:
        """Whether only this node's share of the answer is wanted."""
        return is_asked_alone(context.invocation_metadata())

    def may_move(self, context: Context) -> bool:
        """Whether a call that this node no longer serves can be carried to who does."""
        return addressee(context.invocation_metadata()) is None

    # -- unary

    async def carry(self, request: Any, context: Context, serve: Serve | None) -> Any:
        """The owner's answer. `serve`: should it have become this node's to give."""
        kind = self.rule.kind
        if kind is Kind.HEARTBEATS and 0 < len(request.heartbeats) <= HEARTBEATS_PER_CALL_MAX:
            return await self._carry_batch(request, context, serve)
        if kind is Kind.HEARTBEATS and serve is not None:
            return await serve(request)
        metadata = callers_own(context.invocation_metadata())
        patience = self._gateway.patience(self.rule, context)
        await self._counted(patience)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        together = (
            kind is Kind.HEARTBEAT
            and request.HasField("heartbeat")
            and len(body) <= BYTES_MAX
            and all(name in _NOT_WORTH_TRAVELLING_ALONE for name, _ in metadata)
            and not (self._gateway.traces is not None and self._gateway.traces.follows)
        )
        forwarder, coalescer = self._gateway.forwarder, self._gateway.coalescer

        async def alone(owner: Owner) -> Answer | Refusal:
            return await forwarder.send(self._path, body, owner, metadata, patience.timeout_s())

        async def with_others(owner: Owner) -> Answer | Refusal:
            return await coalescer.send(owner, request.namespace, body, patience.timeout_s())

        outcome = await forwarder.pursue(
            self._shard_id(request),
            self.rule.repeat,
            patience,
            with_others if together else alone,
            self._gateway.is_mine,
        )
        if outcome is None:
            assert serve is not None, "only a node has shards of its own"
            return await serve(request)
        return await _answer(context, outcome)

    def _shard_id(self, request: Any) -> int | None:
        return None if self._place is None else self._gateway.shard_of(*self._place(request))

    async def _counted(self, patience: Patience) -> None:
        """Until it is known how many shards there are, as it is after the first look at a node."""
        routes = self._gateway.routes
        while not routes.shard_count:
            if not await patience.pause(routes):
                raise NoNodeReachable

    # -- batches

    async def _carry_batch(self, request: Any, context: Context, serve: Serve | None) -> Any:
        gateway = self._gateway
        served = None
        if serve is not None and gateway.all_mine():
            served = await serve(request)
            if MOVED_MARK not in served:
                return served
        patience = gateway.patience(self.rule, context)
        await self._counted(patience)
        batch = Batch(request, gateway.forwarder, gateway.routes, gateway.is_mine, serve)
        if served is None and serve is not None and batch.is_all_mine:
            served = await serve(request)
            if MOVED_MARK not in served:
                return served
        metadata = callers_own(context.invocation_metadata())
        outcome = await batch.carry(metadata, patience, served)
        if isinstance(outcome, Refusal):
            return await _answer(context, outcome)
        return await _answer(context, Answer(outcome, tuple(batch.initial), tuple(batch.trailing)))

    # -- streams

    async def carry_stream(self, request: Any, context: Context) -> AsyncIterator[bytes]:
        """Messages of a node's stream to one caller. Once the first has come, its end is the caller's to mend: it knows
        how to resume."""
        forwarder, routes = self._gateway.forwarder, self._gateway.routes
        metadata = callers_own(context.invocation_metadata())
        patience = self._gateway.patience(self.rule, context)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        refusal, refused_by = None, None
        while True:
            owner = forwarder.next_owner(None, refused_by, refusal)
            if owner is not None:
                refusal, begun = None, False
                stream = forwarder.stream(self._path, body, owner, metadata, context.time_remaining())
                async for part in stream:
                    if isinstance(part, bytes):
                        begun = True
                        yield part
                    elif isinstance(part, Refusal):
                        refusal = part
                    elif not begun:
                        await _send_initial(context, part)
                    else:
                        context.set_trailing_metadata(for_the_caller(part))
                if refusal is None:
                    return
                if begun or self._gateway.closing or not refusal.may_repeat(self.rule.repeat):
                    break
                forwarder.learn(None, owner, refusal)
                refused_by = owner
                if forwarder.next_owner(None, refused_by, refusal) is not None:
                    continue
            if not await patience.pause(routes):
                break
            refused_by = None
        await _answer(context, refusal or refusals.from_error(forwarder.nobody(None)))

    def carry_attach(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return self._gateway.streams.attach(requests)


async def _answer(context: Context, outcome: Answer | Refusal) -> bytes:
    if outcome.initial:
        await _send_initial(context, outcome.initial)
    trailing = for_the_caller(outcome.trailing)
    if isinstance(outcome, Refusal):
        await context.abort(outcome.code, outcome.message, trailing_metadata=trailing)
        raise AssertionError("abort raises")
    if trailing:
        context.set_trailing_metadata(trailing)
    return outcome.body


async def _send_initial(context: Context, metadata: refusals.Metadata) -> None:
    if own := for_the_caller(metadata):
        await context.send_initial_metadata(own)
