"""Counts the calls that a server has begun and not finished, so that it knows when it may close their connections."""

from __future__ import annotations


class CallsInFlight:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_error: object) -> None:
        self.count -= 1
