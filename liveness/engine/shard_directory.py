"""The interface by which a node asks about its cluster."""

from __future__ import annotations

from typing import Protocol

from liveness.domain.errors import ShardUnavailable, Unavailable

NEVER_MS = 2**63


class ShardDirectory(Protocol):
    @property
    def owned_until_ms(self) -> int:
        """On the monotonic clock: before this time no other node can have taken a shard of this one."""

    @property
    def reclaims_lost_shards(self) -> bool:
        """Whether the node takes back a shard that another owner took, instead of reporting it as lost."""

    def unavailable_reason(self, shard_id: int) -> Unavailable:
        """Return the error that says why this node does not serve a shard."""

    def remote_observed_ms(self, shard_id: int) -> int:
        """The last known observed time of a shard that another node serves; 0 if it is not known."""


class SingleNodeDirectory:
    """The directory of a node that has the database to itself and no cluster around it."""

    owned_until_ms = NEVER_MS
    reclaims_lost_shards = True

    def unavailable_reason(self, shard_id: int) -> Unavailable:
        return ShardUnavailable(shard_id=shard_id)

    def remote_observed_ms(self, shard_id: int) -> int:
        return 0
