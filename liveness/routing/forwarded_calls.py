"""Calls that other nodes and frontends have forwarded to this node, on the cluster's port.

Such a call names the node that it is meant for (`liveness-to`). This node serves it or refuses it, and never forwards it
again: two nodes that each take the other for the owner would never stop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from liveness.domain.errors import NotForwarded, WrongNode
from liveness.routing.forwarding import is_local_only, target_node
from liveness.routing.gateway import Context, Serve
from liveness.routing.routing_rules import RoutingRule, rule_of
from liveness.rpc.call_metadata import metadata_of


class ForwardedCalls:
    """Makes the routers of the cluster's port, as a `Gateway` makes those of the public one."""

    def __init__(self, own_node_id: str) -> None:
        self._own_node_id = own_node_id

    def router(self, method: MethodDescriptor) -> ForwardedCallRouter:
        return ForwardedCallRouter(self._own_node_id, rule_of(method.containing_service.name, method.name))


class ForwardedCallRouter:
    def __init__(self, own_node_id: str, rule: RoutingRule) -> None:
        self.rule = rule
        self._own_node_id = own_node_id

    def is_local(self, request: Any, context: Context) -> bool:
        """Return True, or refuse a call that was not forwarded or is meant for another node."""
        target = target_node(metadata_of(context))
        if target is None:
            raise NotForwarded
        if target != self._own_node_id:
            raise WrongNode(node_id=self._own_node_id, wanted=target)
        return True

    def is_local_only(self, context: Context) -> bool:
        """Whether the caller wants the answer for this node's shards only."""
        return is_local_only(metadata_of(context))

    def can_forward(self, context: Context) -> bool:
        return False

    async def forward(self, request: Any, context: Context, serve: Serve | None) -> Any:
        raise AssertionError("a forwarded call is served here")

    def forward_stream(self, request: Any, context: Context) -> AsyncIterator[bytes]:
        raise AssertionError("a forwarded call is served here")

    def forward_attach(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Clients' streams arrive over Relay."""
        raise NotForwarded
