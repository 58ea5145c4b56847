"""The end of all calls when a server stops: each gets its answer, or UNAVAILABLE with SHUTTING_DOWN.

gRPC tells clients that the server stops (GOAWAY), and cancels every call that reaches it before they know, without a word
from the server. So the server first holds the calls that arrive: a client that waits for an answer sends no further call.
When no more arrive, it lets gRPC announce the stop, gives clients the time to read it, and then refuses the calls it holds.

What remains: a call that a client sends while the announcement is on its way to it ends as CANCELLED, without details. No
handler has seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from liveness.clock import Clock
from liveness.domain.errors import ShuttingDown

QUIET_MS = 100
QUIET_MS_MAX = 500
"""Clients that do not wait for answers must not delay the stop."""
ANNOUNCEMENT_MS = 100
"""The time that clients get to learn that the server stops."""


class ShutdownGate:
    def __init__(self) -> None:
        self.is_closed = False
        self._held_count = 0
        self._opened = asyncio.Event()

    async def refuse(self) -> None:
        """Hold a call that arrived after the gate was closed, and refuse it when clients know that the server stops."""
        self._held_count += 1
        await self._opened.wait()
        raise ShuttingDown

    async def stop(self, stop_grpc: Coroutine[Any, Any, None], clock: Clock | None) -> None:
        """Close the gate and stop the gRPC server. `clock`: None if time stands still, and no client is to wait for it."""
        self.is_closed = True
        if clock is not None:
            await self._wait_until_quiet(clock)
        stopping = asyncio.ensure_future(stop_grpc)
        try:
            if clock is not None and self._held_count:
                await clock.sleep(ANNOUNCEMENT_MS)
        finally:
            self._opened.set()
        await stopping

    async def _wait_until_quiet(self, clock: Clock) -> None:
        until_ms = clock.monotonic_ms() + QUIET_MS_MAX
        held_count = -1
        while held_count != self._held_count and clock.monotonic_ms() < until_ms:
            held_count = self._held_count
            await clock.sleep(QUIET_MS)
