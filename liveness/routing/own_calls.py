"""Calls that a node or a frontend makes by itself, not for a client: to itself if it owns the shard, otherwise to the owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, NoNodeReachable, Unavailable, error_from_reason
from liveness.routing.forwarding import RpcResponse
from liveness.routing.gateway import Gateway
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import rule_of
from liveness.routing.routing_table import Owner
from liveness.routing.rpc_failures import RpcFailure
from liveness.rpc_details import details_from_trailer
from liveness.security.forwarded_callers import principal_metadata

CALL_TIMEOUT_S = 5.0


class OwnCalls:
    def __init__(self, gateway: Gateway | None, clock: Clock) -> None:
        """`gateway`: None if this node owns all shards."""
        self._gateway = gateway
        self._clock = clock

    async def call(
        self,
        method: MethodDescriptor,
        request: Message,
        serve: Callable[[Any], Awaitable[Any]] | None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:
        """`serve`: serves the call if this node owns its shard; None in a frontend. The caller is `current_caller`.

        Raises the error that the owner reported."""
        gateway = self._gateway
        if gateway is None:
            assert serve is not None
            return await serve(request)
        service = method.containing_service
        rule, path = rule_of(service.name, method.name), f"/{service.full_name}/{method.name}"
        assert rule.shard_key is not None
        budget = RetryBudget(self._clock, gateway.routes, timeout_s, rule.wait_ms_max)
        # A frontend learns the number of shards when it first reaches a node.
        while (shard_id := gateway.shard_of(*rule.shard_key(request))) is None:
            if not await budget.wait():
                raise NoNodeReachable
        body = request.SerializeToString()

        async def send(owner: Owner) -> RpcResponse | RpcFailure:
            return await gateway.forwarder.send(path, body, owner, principal_metadata(), budget.timeout_s())

        outcome = await gateway.forwarder.send_until_served(
            shard_id, rule.retry_safety, budget, send, gateway.owns_shard
        )
        if outcome is None:
            assert serve is not None
            return await serve(request)
        if isinstance(outcome, RpcFailure):
            raise _error_of(outcome)
        return GetMessageClass(method.output_type).FromString(outcome.body)


def _error_of(failure: RpcFailure) -> LivenessError:
    details = details_from_trailer(failure.code, failure.trailing_metadata)
    return error_from_reason(details.reason, details.fields) or Unavailable()
