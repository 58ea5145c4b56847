"""The end of all calls when a server stops: each gets its answer, or UNAVAILABLE.

gRPC cancels every call that it reads after it was told to stop and before clients know, without a word from the server. So
nothing may be read in that time:

1. The server holds the calls that arrive: a client that waits for an answer sends no further call.
2. When no more arrive, it stops reading from its connections, and lets every call that was read reach the gate.
3. It has gRPC announce the stop, refuses the calls it holds with SHUTTING_DOWN, and lets all others be answered.
4. It has gRPC close the connections. gRPC then names the last call that it read (GOAWAY), and clients send those that it
   did not read again elsewhere, or report them as UNAVAILABLE.

If calls take longer than `FINISH_MS_MAX`, or if the system cannot stop reading (it is not Linux), the server reads on after
the announcement: a call that a client sends while the announcement is on its way to it then ends as CANCELLED, without
details. No handler has seen it.

The native edge can leave calls unread by itself, so that there this is not needed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from liveness.clock import Clock
from liveness.domain.errors import ShuttingDown
from liveness.network_addresses import split_address
from liveness.rpc.calls_in_flight import CallsInFlight
from liveness.server.accepted_sockets import AcceptedSockets
from liveness.server.edge_listener import EdgeServer

QUIET_MS = 100
QUIET_MS_MAX = 500
"""Clients that do not wait for answers must not delay the stop."""
READ_CALLS_MS = 50
READ_CALLS_MS_MAX = 300
"""The time in which calls that were read reach the gate."""
ANNOUNCEMENT_MS = 100
"""The time that clients get to learn that the server stops."""
FINISH_MS = 10
FINISH_MS_MAX = 500
"""The longest time without reading: answers larger than a connection's window need it, and so do cancellations."""
SEND_MS = 50
"""The time that gRPC gets to send the last answers. It gets it again if the machine was too busy to end it in time."""
SENDS_MAX = 10


class ShutdownGate:
    def __init__(self) -> None:
        self.is_closed = False
        self.calls = CallsInFlight()
        self._held_count = 0
        self._opened = asyncio.Event()

    async def refuse(self) -> None:
        """Hold a call that arrived after the gate was closed, and refuse it when clients know that the server stops."""
        self._held_count += 1
        await self._opened.wait()
        raise ShuttingDown

    async def stop(self, server: Any, address: str, timeout_s: float, clock: Clock | None) -> None:
        """Close the gate and stop the gRPC server, which listens at this address.

        `timeout_s`: the time for calls in flight. `clock`: None if time stands still, and no client is to wait for it.
        """
        if isinstance(server, EdgeServer):
            await server.stop(timeout_s)
            self.is_closed = True  # for calls at other ports
            self._opened.set()
            return
        self.is_closed = True
        if clock is None:
            self._opened.set()
            await server.stop(timeout_s)
            return
        await self._wait_until_quiet(clock, QUIET_MS, QUIET_MS_MAX)
        sockets = AcceptedSockets(split_address(address)[1])
        is_unread = sockets.stop_reading()
        if is_unread:
            await self._wait_until_quiet(clock, READ_CALLS_MS, READ_CALLS_MS_MAX)
        had_calls = bool(self.calls.count)
        stopping = asyncio.ensure_future(server.stop(timeout_s))
        try:
            if self._held_count and not is_unread:
                await clock.sleep(ANNOUNCEMENT_MS)
        finally:
            self._opened.set()
        if is_unread:
            if await self._calls_finished(clock):
                if had_calls:
                    await self._let_answers_out(clock)
                await server.stop(None)
            else:
                sockets.resume_reading()
        await stopping

    async def _wait_until_quiet(self, clock: Clock, quiet_ms: int, max_ms: int) -> None:
        """Return when no call has arrived for `quiet_ms`, or after `max_ms`."""
        until_ms = clock.monotonic_ms() + max_ms
        held_count = -1
        while held_count != self._held_count and clock.monotonic_ms() < until_ms:
            held_count = self._held_count
            await clock.sleep(quiet_ms)

    async def _let_answers_out(self, clock: Clock) -> None:
        for _ in range(SENDS_MAX):
            began_ms = clock.monotonic_ms()
            await clock.sleep(SEND_MS)
            if clock.monotonic_ms() - began_ms < 2 * SEND_MS:
                return

    async def _calls_finished(self, clock: Clock) -> bool:
        until_ms = clock.monotonic_ms() + FINISH_MS_MAX
        while self.calls.count and clock.monotonic_ms() < until_ms:
            await clock.sleep(FINISH_MS)
        return not self.calls.count
