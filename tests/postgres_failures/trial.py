"""A server under load whose PostgreSQL is made to fail, and the account that is taken afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from tests.databases import StoreHome
from tests.end_to_end.audit import audit_workers
from tests.end_to_end.campaign import Say, acknowledged, check, wind_up
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load
from tests.end_to_end.server_process import STEP_MS_MAX, Outage, ServerProcess

ACKNOWLEDGED = 60
"""Calls before each failure, and after it."""


class Trial:
    def __init__(self, server: ServerProcess, ledger: Ledger, load: Load) -> None:
        self.server = server
        self.ledger = ledger
        self._load = load
        self._pid = server.pid
        self.failures = 0

    @asynccontextmanager
    async def failure(self) -> AsyncIterator[None]:
        """PostgreSQL fails, and is well again at the end of the context. Then the server serves again by itself, and
        knows everything it acknowledged."""
        await acknowledged(self.ledger, ACKNOWLEDGED)
        self.failures += 1
        yield
        await acknowledged(self.ledger, ACKNOWLEDGED)
        assert self.server.running, self.server.said()
        assert self.server.pid == self._pid
        self._load.pause()
        await self._load.quiet()
        await audit_workers(self.server, self.ledger)
        self._load.resume()

    async def down(self, stop: Callable[[], None], start: Callable[[], None], seconds: float = 0.3) -> None:
        """Nothing can be committed between the two calls."""
        await asyncio.to_thread(stop)
        since = time.monotonic()
        await asyncio.sleep(seconds)
        self.server.outages.append(Outage(since, time.monotonic(), STEP_MS_MAX))
        await asyncio.to_thread(start)


@asynccontextmanager
async def trial(server: ServerProcess, home: StoreHome, say: Say, seed: int = 1) -> AsyncIterator[Trial]:
    """The server is started before, and audited to the last row afterwards."""
    began = time.monotonic()
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(seed)) as load:
        run = Trial(server, ledger, load)
        yield run
        load.pause()
        await load.quiet()
    await wind_up(server, home, ledger)
    say(
        f"tried {run.failures}, violated {len(ledger.violations)} in {time.monotonic() - began:.1f} s "
        f"({ledger.acked} acknowledged, {ledger.in_doubt} in doubt, of which {ledger.in_doubt_applied} applied)",
        tried=run.failures,
        violated=len(ledger.violations),
    )
    check(ledger)
