"""One call on its way to a node and back: bytes, deadline, metadata, trailers and details pass through unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import grpc
import structlog

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, NoNodeReachable, ShardUnavailable, ShuttingDown
from liveness.routing import rpc_failures
from liveness.routing.channels import ChannelPool
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.routing.rpc_failures import Metadata, RpcFailure
from liveness.rpc.tracing import CallTracer
from liveness.rpc_details import DETAILS_KEY

logger = structlog.get_logger("liveness.frontend")

TARGET_NODE_HEADER = "liveness-to"
"""Metadata: the node that a call is meant for. Who receives it serves the call or refuses it."""
LOCAL_ONLY_HEADER = "liveness-alone"
"""Metadata: the node is asked for its own share only, by one that asks all of them. Who forwards a call for somebody
else does not say so: the node it goes to has to ask the others."""
IMMEDIATE_RETRIES_MAX = 4
"""Nodes that know nothing certain may send a call in circles."""

_TRANSPORT_METADATA = frozenset(
    {TARGET_NODE_HEADER, LOCAL_ONLY_HEADER, "user-agent", "content-type", "te", "host", "accept-encoding"}
)
"""What each gRPC client says for itself, as everything that begins with grpc-."""


class RpcResponse(NamedTuple):
    body: bytes
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


def caller_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """What a program said, without what gRPC says for it."""
    return tuple(
        (name, value)
        for name, value in metadata or ()
        if name not in _TRANSPORT_METADATA and not name.startswith(("grpc-", ":"))
    )


def metadata_for_caller(metadata: Metadata) -> Metadata:
    return tuple(
        (name, value)
        for name, value in metadata
        if name == DETAILS_KEY or (name not in _TRANSPORT_METADATA and not name.startswith(("grpc-", ":")))
    )


def target_node(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    for name, value in metadata or ():
        if name == TARGET_NODE_HEADER:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None


def is_local_only(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    return any(name == LOCAL_ONLY_HEADER for name, _ in metadata or ())


class Forwarder:
    def __init__(
        self,
        routes: RoutingTable,
        channels: ChannelPool,
        clock: Clock,
        *,
        own_node_id: str = "",
        on_node_unreachable: Callable[[], None] = lambda: None,
        tracer: CallTracer | None = None,
    ) -> None:
        """`own_node_id`: this node, to which nothing is forwarded. `on_node_unreachable`: a node was not where it should be."""
        self._tracer = tracer
        self._routes = routes
        self._channels = channels
        self._clock = clock
        self._own_node_id = own_node_id
        self._on_node_unreachable = on_node_unreachable
        self._next_member = 0
        self._streams: set[Any] = set()
        self._is_closing = False

    def cancel_streams(self) -> None:
        """We stop; those who read one are told to look elsewhere."""
        self._is_closing = True
        for call in self._streams:
            call.cancel()

    # -- one try

    async def send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> RpcResponse | RpcFailure:
        span = None if self._tracer is None else self._tracer.start_client_span(path, owner.node_id)
        if span is None:
            return await self._send(path, body, owner, metadata, timeout_s)
        with span:
            outcome = await self._send(path, body, owner, span.inject_into(metadata), timeout_s)
            span.set_status_code(outcome.code if isinstance(outcome, RpcFailure) else grpc.StatusCode.OK)
            return outcome

    async def _send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> RpcResponse | RpcFailure:
        call = self._channels.channel_for(owner.address).unary(path)(
            body, timeout=timeout_s, metadata=(*metadata, (TARGET_NODE_HEADER, owner.node_id))
        )
        try:
            answer = await call
            return RpcResponse(
                answer, tuple(await call.initial_metadata()), tuple(await call.trailing_metadata())
            )
        except grpc.aio.AioRpcError as error:
            return self._log_wrong_node(rpc_failures.from_rpc_error(error, owner), owner)
        except asyncio.CancelledError:
            if _is_task_cancelled():
                call.cancel()
                raise
            return rpc_failures.node_lost(owner)  # its channel was closed

    async def stream(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float | None
    ) -> AsyncIterator[bytes | Metadata | RpcFailure]:
        """The initial metadata, the messages, then how it ended: a refusal or the trailing metadata."""
        call = self._channels.channel_for(owner.address).server_stream(path)(
            body, timeout=timeout_s, metadata=(*metadata, (TARGET_NODE_HEADER, owner.node_id))
        )
        self._streams.add(call)
        try:
            if self._is_closing:
                raise asyncio.CancelledError
            message = await call.read()
            yield tuple(await call.initial_metadata())
            while message is not grpc.aio.EOF:
                yield message
                message = await call.read()
            yield tuple(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            yield self._log_wrong_node(rpc_failures.from_rpc_error(error, owner), owner)
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            yield (
                rpc_failures.from_error(ShuttingDown()) if self._is_closing else rpc_failures.node_lost(owner)
            )
        finally:
            self._streams.discard(call)
            call.cancel()

    def _log_wrong_node(self, failure: RpcFailure, owner: Owner) -> RpcFailure:
        if failure.reason == rpc_failures.WRONG_NODE:
            logger.error(
                "two nodes give out one address; set --advertise of each",
                address=owner.address,
                wanted=owner.node_id,
                found=failure.fields.get("node_id", ""),
            )
        return failure

    # -- from try to try

    def update_owner(self, shard_id: int | None, owner: Owner, failure: RpcFailure) -> None:
        """Take from a refusal what it says about the way."""
        if (new_owner := failure.new_owner) is not None:
            self._routes.update_owner(*new_owner)
        elif failure.reason == rpc_failures.NODE_LOST:
            if shard_id is not None:
                self._routes.clear_owner(shard_id, owner.node_id)
            self._on_node_unreachable()

    def next_owner(
        self, shard_id: int | None, failed_owner: Owner | None, failure: RpcFailure | None
    ) -> Owner | None:
        """Whom to try, or None: nobody is known, or only the one who refused."""
        if shard_id is not None:
            owner = self._routes.owner(shard_id)
        elif failure is not None and (new_owner := failure.new_owner) is not None:
            owner = new_owner[1]
        else:
            owner = self._any_member(failed_owner)
        if owner is not None and failed_owner is not None and owner.node_id == failed_owner.node_id:
            return None
        return owner

    def _any_member(self, excluded: Owner | None) -> Owner | None:
        """Nodes take turns; those about to leave come last."""
        members = [member for member in self._routes.members() if member.node_id != self._own_node_id]
        staying = [member for member in members if not member.leaving] or members
        others = [
            member for member in staying if excluded is None or member.node_id != excluded.node_id
        ] or staying
        if not others:
            return None
        self._next_member += 1
        chosen = others[self._next_member % len(others)]
        return Owner(chosen.node_id, chosen.address, 0)

    def unavailable_error(self, shard_id: int | None) -> LivenessError:
        if shard_id is None or not self._routes.members():
            return NoNodeReachable()
        return ShardUnavailable(shard_id=shard_id)

    async def send_until_served(
        self,
        shard_id: int | None,
        retry_safety: RetrySafety,
        retry_budget: RetryBudget,
        send: Callable[[Owner], Any],
        owns_shard: Callable[[int], bool],
    ) -> RpcResponse | RpcFailure | None:
        """Try until it is served, or refused for good, or the time is over. None: the shard has become this node's.

        `shard_id`: None for a call that any node may serve.
        """
        failure: RpcFailure | None = None
        failed_owner: Owner | None = None
        immediate_retries = IMMEDIATE_RETRIES_MAX
        while True:
            if shard_id is not None and owns_shard(shard_id):
                return None
            owner = self.next_owner(shard_id, failed_owner, failure)
            if owner is not None:
                outcome = await send(owner)
                if isinstance(outcome, RpcResponse) or not outcome.can_retry(retry_safety):
                    return outcome  # type: ignore[no-any-return]
                failure, failed_owner = outcome, owner
                self.update_owner(shard_id, owner, outcome)
                immediate_retries -= 1
                if immediate_retries and self.next_owner(shard_id, owner, outcome) is not None:
                    continue
            if not await retry_budget.wait(self._routes):
                return failure or rpc_failures.from_error(self.unavailable_error(shard_id))
            failed_owner, immediate_retries = None, IMMEDIATE_RETRIES_MAX


def _is_task_cancelled() -> bool:
    """Whether somebody cancelled us, or only the call that we wait for, which looks the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
