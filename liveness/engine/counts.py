"""Counts whose keys come and go."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

Key = TypeVar("Key")


def add_count(counts: Counter[Key], key: Key, count: int) -> None:
    """Add to a count, and keep no entry that is 0."""
    counts[key] += count
    if not counts[key]:
        del counts[key]  # namespaces come and go
