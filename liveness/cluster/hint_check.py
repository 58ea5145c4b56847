"""Reads the registry when another node's hint says something new about owners or logs.

A hint may be wrong: it may be old, or forged by whoever reaches the cluster's port. So nothing that it says is believed; it
only makes this node read sooner. Hints that arrive while a read is under way share the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from liveness.background import BackgroundTasks
from liveness.clock import Clock

READ_GAP_MS_MIN = 10
"""The minimum time between two reads, whatever hints say."""


class HintCheck:
    def __init__(
        self, read: Callable[[], Awaitable[None]], clock: Clock, gap_ms: int = READ_GAP_MS_MIN
    ) -> None:
        self._read = read
        self._gap_ms = gap_ms
        self._clock = clock
        self._is_requested = False
        self._is_running = False
        self._tasks = BackgroundTasks("hints")

    def request(self) -> None:
        """Read at once, or right after the read that is under way."""
        self._is_requested = True
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run())

    async def _run(self) -> None:
        try:
            while self._is_requested:
                self._is_requested = False
                await self._read()
                if self._gap_ms:
                    await self._clock.sleep(self._gap_ms)
        finally:
            self._is_running = False

    async def wait(self) -> None:
        """Wait until everything has been read that hints asked for."""
        await self._tasks.wait()

    async def close(self) -> None:
        await self._tasks.close()
