"""Forwarding of a call to a node. Bytes, deadline, metadata, trailers and error details pass through unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import grpc
import structlog

from liveness.clock import Clock, stopwatch
from liveness.domain.errors import CutOff, LivenessError, NoNodeReachable, ShardUnavailable, ShuttingDown
from liveness.routing import rpc_failures
from liveness.routing.channels import ChannelPool
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.routing.rpc_failures import Metadata, RpcFailure
from liveness.rpc.tracing import CallTracer
from liveness.rpc_details import DETAILS_KEY
from liveness.security.forwarded_callers import principal_metadata
from liveness.security.principal import AUTHORIZATION_HEADER, caller_address

logger = structlog.get_logger("liveness.frontend")

TARGET_NODE_HEADER = "liveness-to"
"""Metadata: the id of the node that the call is meant for. That node serves the call; any other refuses it."""
LOCAL_ONLY_HEADER = "liveness-alone"
"""Metadata: the node answers for its own shards only, because the sender asks all nodes. A frontend that forwards a call
does not set it: the node has to ask the others."""
CALLER_ADDRESS_HEADER = "liveness-caller-address"
"""Names the address of the caller of a forwarded change, for the audit."""
IMMEDIATE_RETRIES_MAX = 4
"""Nodes with outdated routes may send a call in circles."""

_TRANSPORT_METADATA = frozenset(
    {AUTHORIZATION_HEADER, "user-agent", "content-type", "te", "host", "accept-encoding"}
)
"""Set by each gRPC client itself, as is everything that begins with grpc-; not forwarded."""
_OWN_PREFIXES = ("grpc-", ":", "liveness-")
"""Metadata that begins with liveness- is what nodes and frontends say to each other. A client's is ignored and goes no further."""


RecordTry = Callable[[str, str, float | None], None]
"""Called with the path, the name of the status code, and the seconds until the answer; None for a stream."""


def ignore_try(path: str, code: str, seconds: float | None) -> None:
    pass


class RpcResponse(NamedTuple):
    body: bytes
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


def caller_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """The metadata that the caller's program set, without that of its gRPC library."""
    passed_on = tuple(
        (name, value)
        for name, value in metadata or ()
        if name not in _TRANSPORT_METADATA and not name.startswith(_OWN_PREFIXES)
    )
    return (*passed_on, *principal_metadata())


def metadata_for_caller(metadata: Metadata) -> Metadata:
    return tuple(
        (name, value)
        for name, value in metadata
        if name == DETAILS_KEY or (name not in _TRANSPORT_METADATA and not name.startswith(_OWN_PREFIXES))
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
        record_try: RecordTry = ignore_try,
    ) -> None:
        """`own_node_id`: this node, to which nothing is forwarded; empty in a frontend. `on_node_unreachable`: called when a
        node does not answer at its address. `record_try`: called after each try."""
        self._tracer = tracer
        self._record_try = record_try
        self._routes = routes
        self._channels = channels
        self._clock = clock
        self._own_node_id = own_node_id
        self._on_node_unreachable = on_node_unreachable
        self._next_member = 0
        self._streams: set[Any] = set()
        self._is_closing = False
        self._logged_as_gone: set[str] = set()
        """Ids of nodes at whose address another one answered."""

    def cancel_streams(self) -> None:
        """End all streams, since this process stops. Their readers get SHUTTING_DOWN and go to another node."""
        self._is_closing = True
        for call in self._streams:
            call.cancel()

    # -- one try

    async def send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> RpcResponse | RpcFailure:
        span = None if self._tracer is None else self._tracer.start_client_span(path, owner.node_id)
        seconds = stopwatch()
        code = grpc.StatusCode.CANCELLED
        try:
            if span is None:
                outcome = await self._send(path, body, owner, metadata, timeout_s)
                code = _code_of(outcome)
                return outcome
            with span:
                outcome = await self._send(path, body, owner, span.inject_into(metadata), timeout_s)
                code = _code_of(outcome)
                span.set_status_code(code)
                return outcome
        finally:
            self._record_try(path, code.name, seconds())

    async def _send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> RpcResponse | RpcFailure:
        own_metadata: Metadata = ((TARGET_NODE_HEADER, owner.node_id),)
        if address := caller_address.get():
            own_metadata = (*own_metadata, (CALLER_ADDRESS_HEADER, address))
        call = self._channels.channel_for(owner.address).unary(path)(
            body, timeout=timeout_s, metadata=(*metadata, *own_metadata)
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
        """Yield the initial metadata, the messages, and last the failure or the trailing metadata."""
        call = self._channels.channel_for(owner.address).server_stream(path)(
            body, timeout=timeout_s, metadata=(*metadata, (TARGET_NODE_HEADER, owner.node_id))
        )
        self._streams.add(call)
        code = grpc.StatusCode.CANCELLED
        try:
            if self._is_closing:
                raise asyncio.CancelledError
            message = await call.read()
            yield tuple(await call.initial_metadata())
            while message is not grpc.aio.EOF:
                yield message
                message = await call.read()
            code = grpc.StatusCode.OK
            yield tuple(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            code = error.code()
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
            self._record_try(path, code.name, None)

    def _log_wrong_node(self, failure: RpcFailure, owner: Owner) -> RpcFailure:
        if failure.reason == rpc_failures.WRONG_NODE and owner.node_id not in self._logged_as_gone:
            self._logged_as_gone.add(owner.node_id)  # many calls fail for the same reason at once
            logger.warning(
                "another node answers at a node's address: the node is gone, or two give out the same address",
                address=owner.address,
                wanted=owner.node_id,
                found=failure.fields.get("node_id", ""),
            )
        return failure

    # -- from try to try

    def update_owner(self, shard_id: int | None, owner: Owner, failure: RpcFailure) -> None:
        """Update the routes with what a failure says about the owner of the shard."""
        if (new_owner := failure.new_owner) is not None:
            self._routes.update_owner(*new_owner)
        elif failure.reason in (rpc_failures.NODE_LOST, rpc_failures.WRONG_NODE):
            if shard_id is not None:
                self._routes.clear_owner(shard_id, owner.node_id)
            self._on_node_unreachable()

    def next_owner(
        self, shard_id: int | None, failed_owner: Owner | None, failure: RpcFailure | None
    ) -> Owner | None:
        """The node to try next. None: no node is known, or only the one that failed."""
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
        """Choose a node, in turn. Nodes that are leaving are chosen only if there is no other."""
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
            # A node that knows no node at all does not even count itself.
            return CutOff(node_id=self._own_node_id) if self._own_node_id else NoNodeReachable()
        return ShardUnavailable(shard_id=shard_id)

    async def send_until_served(
        self,
        shard_id: int | None,
        retry_safety: RetrySafety,
        retry_budget: RetryBudget,
        send: Callable[[Owner], Any],
        owns_shard: Callable[[int], bool],
        tried: tuple[Owner, RpcFailure] | None = None,
    ) -> RpcResponse | RpcFailure | None:
        """Try until the call is served, fails for good, or the budget is used up. None: this node owns the shard now.

        `shard_id`: None for a call that any node may serve. `tried`: how the first try failed, if it was made already.
        """
        failure: RpcFailure | None = None
        failed_owner: Owner | None = None
        immediate_retries = IMMEDIATE_RETRIES_MAX
        while True:
            if tried is None and shard_id is not None and owns_shard(shard_id):
                return None
            owner = self.next_owner(shard_id, failed_owner, failure) if tried is None else tried[0]
            if owner is not None:
                outcome = await send(owner) if tried is None else tried[1]
                tried = None
                if isinstance(outcome, RpcResponse) or not outcome.can_retry(retry_safety):
                    return outcome
                failure, failed_owner = outcome, owner
                self.update_owner(shard_id, owner, outcome)
                immediate_retries -= 1
                if immediate_retries and self.next_owner(shard_id, owner, outcome) is not None:
                    continue
            if not await retry_budget.wait():
                return failure or rpc_failures.from_error(self.unavailable_error(shard_id))
            failed_owner, immediate_retries = None, IMMEDIATE_RETRIES_MAX


def _code_of(outcome: RpcResponse | RpcFailure) -> grpc.StatusCode:
    return outcome.code if isinstance(outcome, RpcFailure) else grpc.StatusCode.OK


def _is_task_cancelled() -> bool:
    """Whether this task was cancelled. If only the awaited call was, the same exception is raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
