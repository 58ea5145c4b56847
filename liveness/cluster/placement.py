"""Which node a shard belongs to: rendezvous hashing. Whoever knows the same nodes comes to the same answer, and when a
node comes or goes, only the shards that it wins or had move.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b


def rendezvous_weight(address: str, shard_id: int) -> int:
    """The same in every process and every version: where a shard belongs depends on it."""
    return int.from_bytes(blake2b(b"%d\0%s" % (shard_id, address.encode()), digest_size=8).digest())


def choose_node(shard_id: int, addresses: Collection[str]) -> str | None:
    """`addresses`: what names the nodes over restarts, such as their addresses."""
    return max(addresses, key=lambda address: (rendezvous_weight(address, shard_id), address), default=None)
