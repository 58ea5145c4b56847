"""Keys of workers and activities, and their shard. Keys are tuples: parts joined by a separator could collide."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

IDENTIFIER_BYTES_MAX = 255


class WorkerKey(NamedTuple):
    namespace: str
    instance_key: str


class ActivityId(NamedTuple):
    """An activity inside a namespace."""

    workflow_id: str
    run_id: str
    activity_id: str


class ActivityKey(NamedTuple):
    namespace: str
    workflow_id: str
    run_id: str
    activity_id: str

    @property
    def id(self) -> ActivityId:
        return ActivityId(self.workflow_id, self.run_id, self.activity_id)


def namespace_seed(namespace: str) -> int:
    """The part of `shard_of` that depends on the namespace alone, so that a batch computes it once."""
    return crc32(b"\0", crc32(namespace.encode()))


def shard_from_seed(seed: int, name: str, shard_count: int) -> int:
    # CRC-32 is linear: neighbouring names differ in few bits. The multiplication spreads them, and the high
    # bits, which depend on all others, choose the shard.
    spread = (crc32(name.encode(), seed) * 0x9E3779B1) & 0xFFFFFFFF
    return (spread * shard_count) >> 32


def shard_of(namespace: str, name: str, shard_count: int) -> int:
    """The shard of a worker (by instance key) or an activity (by workflow id). Never changes for a given store."""
    return shard_from_seed(namespace_seed(namespace), name, shard_count)
