"""A server under load whose PostgreSQL is made to fail, and the account that is taken afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from tests.databases import StoreDatabase
from tests.system.server.audit import audit_workers
from tests.system.server.crash_loop import ReportResult, acknowledged, check, final_audit
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import STEP_MS_MAX, Outage, ServerProcess

ACKNOWLEDGED = 60
"""Calls before each failure, and after it."""


class OutageRun:
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
        assert self.server.running, self.server.log_text()
        assert self.server.pid == self._pid
        self._load.pause()
        await self._load.wait_idle()
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
async def outage_run(
    server: ServerProcess, store_database: StoreDatabase, report_result: ReportResult, seed: int = 1
) -> AsyncIterator[OutageRun]:
    """The server is started before, and audited to the last row afterwards."""
    began = time.monotonic()
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(seed)) as load:
        run = OutageRun(server, ledger, load)
        yield run
        load.pause()
        await load.wait_idle()
    await final_audit(server, store_database, ledger)
    report_result(
        f"tried {run.failures}, violated {len(ledger.violations)} in {time.monotonic() - began:.1f} s "
        f"({ledger.acked} acknowledged, {ledger.in_doubt} in doubt, of which {ledger.in_doubt_applied} applied)",
        tried=run.failures,
        violated=len(ledger.violations),
    )
    check(ledger)
