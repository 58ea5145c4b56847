"""Divides the database among the namespaces whose clients search it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SEARCHES_PER_NAMESPACE_MAX = 2
"""At a time; further ones wait, so that those of other namespaces come in between."""


class SearchTurns:
    def __init__(self) -> None:
        self._rooms: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """By namespace; "" for searches in all of them. With each, how many searches run or wait."""

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        room, users = self._rooms.get(namespace) or (asyncio.Semaphore(SEARCHES_PER_NAMESPACE_MAX), 0)
        self._rooms[namespace] = room, users + 1
        try:
            async with room:
                yield
        finally:
            room, users = self._rooms.pop(namespace)
            if users > 1:
                self._rooms[namespace] = room, users - 1
