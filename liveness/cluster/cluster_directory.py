"""The shard directory of a node in a cluster. The node's membership keeps it up to date."""

from __future__ import annotations

from collections.abc import Mapping

from liveness.domain.errors import ShardMoved, ShardUnavailable, Unavailable
from liveness.engine.shard_directory import NEVER_MS
from liveness.routing.routing_table import RoutingTable


class ClusterDirectory:
    """A `ShardDirectory`. The membership decides which node takes a lost shard, so the node itself reclaims none."""

    reclaims_lost_shards = False

    def __init__(self, node_id: str, routes: RoutingTable) -> None:
        self._node_id = node_id
        self._routes = routes
        self._observed_ms: Mapping[int, int] = {}
        self.owned_until_ms = NEVER_MS

    def lease_renewed(self, owned_until_ms: int) -> None:
        self.owned_until_ms = owned_until_ms

    def set_observed_times(self, observed_ms: Mapping[int, int]) -> None:
        """Replace the observed times of all shards by those that the database shows now."""
        self._observed_ms = observed_ms

    def remote_observed_ms(self, shard_id: int) -> int:
        return self._observed_ms.get(shard_id, 0)

    def unavailable_reason(self, shard_id: int) -> Unavailable:
        owner = self._routes.owner(shard_id)
        if owner is None or owner.node_id == self._node_id:
            return ShardUnavailable(shard_id=shard_id)
        return ShardMoved(shard_id=shard_id, node_id=owner.node_id, address=owner.address, epoch=owner.epoch)
