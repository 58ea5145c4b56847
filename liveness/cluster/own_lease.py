"""This node's own lease in the registry, by its own clock: until when it lasts, and when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liveness.clock import Clock

LEASE_SAFETY_FACTOR = 0.9
"""The part of its own lease that a node relies on: clocks do not run at quite the same speed."""


class OwnLease:
    def __init__(self, clock: Clock, lease_ms: int, renewal_interval_ms: float) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._renewal_interval_ms = renewal_interval_ms
        self._until_ms: float = 0
        self._renewed = asyncio.Event()
        self.is_over = False
        """Whether the lease ran out, and no renewal has succeeded since. Then other nodes may own all shards of this one."""

    def until_ms(self, renewal_began_ms: int) -> int:
        """On the monotonic clock: the end of a lease whose renewal began at this time."""
        return renewal_began_ms + int(self._lease_ms * LEASE_SAFETY_FACTOR)

    def renew(self, renewal_began_ms: int) -> None:
        """Record that a renewal succeeded. If it took longer than the lease itself, the lease is over all the same."""
        self._until_ms = self.until_ms(renewal_began_ms)
        if self._clock.monotonic_ms() < self._until_ms:
            self.is_over = False
            self._renewed.set()

    async def wait_until_over(self, request_renewal: Callable[[], None]) -> None:
        """Return when the lease has run out, with `is_over` set.

        A process that stood still could not renew in that time: it requests a renewal and waits for it before it concludes
        that the database is away. Meanwhile `Node.barrier` keeps it from answering by its memory alone.
        """
        while True:
            until_ms = self._until_ms
            await self._clock.sleep(max(0, until_ms - self._clock.monotonic_ms()))
            now_ms = self._clock.monotonic_ms()
            if self._until_ms != until_ms:
                continue
            if now_ms - until_ms <= self._renewal_interval_ms:
                break
            self._until_ms = now_ms + 2 * self._renewal_interval_ms
            request_renewal()
        self._renewed.clear()
        self.is_over = True

    async def wait_until_renewed(self) -> None:
        await self._renewed.wait()
