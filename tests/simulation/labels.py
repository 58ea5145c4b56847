"""Labels of workers and shards in the steps of a history."""

from __future__ import annotations

Key = tuple[str, str]
"""A worker: namespace and instance key."""


def worker_label(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def shard(shard_id: int) -> str:
    return f"shard {shard_id}"
