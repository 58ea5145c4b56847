"""The interface by which a node tells other components about its shards, commits and ticks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from liveness.engine.shard import PreparedCommit, Shard
from liveness.expiry.death_rate import DeathCount


class NodeListener:
    """Base class of everything that follows a node. Its methods do nothing; a listener overrides those that it needs.

    The node calls its listeners in the order of their registration, on the event loop, and they must return at once.
    """

    def shard_opened(self, shard: Shard) -> None:
        """The node has taken a shard, or read it again, and serves it from now on."""

    def shard_closed(self, shard: Shard) -> None:
        """The node no longer serves a shard: it was handed over, taken by another owner, or must be read again."""

    def shards_lost(self, shard_ids: Collection[int]) -> None:
        """Another owner has taken these shards. `shard_closed` was called for each of them before."""

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        """These commits of several shards became durable, in one transaction."""

    def policy_changed(self) -> None:
        """A namespace's policy changed."""

    def deaths_counted(self, namespace: str, death_count: DeathCount) -> None:
        """Workers of a namespace fell due; `death_count` is this node's share of a possible storm."""

    def tick(self) -> None:
        """The node looked at the clock. Not called while heartbeats may lie unread after a stall."""

    def heard(self, lag_ms: int) -> None:
        """A probe of this node's own listener was answered after `lag_ms`: `ReceiveProgress.heard_until_ms` has moved."""

    def lagged(self, ms: int) -> None:
        """A tick came this much later than planned: the event loop kept everything else waiting as long."""

    def stalled(self, ms: int) -> None:
        """The process stood still for this long."""
