"""Assigns shards to nodes by rendezvous hashing. Nodes that know the same members compute the same assignment, and when a
node joins or leaves, only the shards that it gains or had move.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b


def rendezvous_weight(address: str, shard_id: int) -> int:
    """The weight of a node for a shard. It must be the same in every process and version: the assignment depends on it."""
    return int.from_bytes(blake2b(b"%d\0%s" % (shard_id, address.encode()), digest_size=8).digest())


def choose_node(shard_id: int, addresses: Collection[str]) -> str | None:
    """Choose by address and not by id, because a node keeps its address when it restarts."""
    return max(addresses, key=lambda address: (rendezvous_weight(address, shard_id), address), default=None)
