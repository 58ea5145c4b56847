"""What a step of a story is about."""

from __future__ import annotations

Key = tuple[str, str]
"""A worker: namespace and key."""


def worker_label(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def shard(shard_id: int) -> str:
    return f"shard {shard_id}"
