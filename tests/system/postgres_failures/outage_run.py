"""A server under load whose PostgreSQL fails, and the audit afterwards."""

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
"""Calls acknowledged before and after each failure."""


class OutageRun:
    def __init__(self, server: ServerProcess, ledger: Ledger, load: Load) -> None:
        self.server = server
        self.ledger = ledger
        self._load = load
        self._pid = server.pid
        self.failures = 0

    @asynccontextmanager
    async def failure(self) -> AsyncIterator[None]:
        """PostgreSQL fails inside the context and works again at its end.

        Then the server recovers by itself, with all acknowledged data.
        """
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
        """Stop PostgreSQL, and start it after `seconds`; nothing can be committed in between."""
        await asyncio.to_thread(stop)
        since = time.monotonic()
        await asyncio.sleep(seconds)
        self.server.outages.append(Outage(since, time.monotonic(), STEP_MS_MAX))
        await asyncio.to_thread(start)


@asynccontextmanager
async def outage_run(
    server: ServerProcess, store_database: StoreDatabase, report_result: ReportResult, seed: int = 1
) -> AsyncIterator[OutageRun]:
    """Start the server, run load on it, and audit every row of its database at the end."""
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
