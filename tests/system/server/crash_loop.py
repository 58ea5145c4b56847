"""Kill a server under load again and again on the same data, and compare it with the ledger each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from signal import SIGTERM
from typing import Protocol

from tests.databases import StoreDatabase
from tests.system.server.audit import ClockAudit, audit_database, audit_workers, expire_all_leases
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess

LOAD_SECONDS = (0.05, 0.5)
LONG_OUTAGE_EVERY = 6
LONG_OUTAGE_SECONDS = 1.5
"""Longer than the shortest lease; no worker may lose its lease by the outage."""

ANSWER_SECONDS_MAX = 60


class ReportResult(Protocol):
    def __call__(
        self, text: str, *, tried: int = 0, violated: int = 0, row: str = "", seconds: float | None = None
    ) -> None:
        """Report figures on the terminal.

        `make crash` also counts `tried` and `violated`, in a row of its own if `row` names one; `seconds` is that
        row's part of the test.
        """


async def crash_repeatedly(
    server: ServerProcess,
    store_database: StoreDatabase,
    report_result: ReportResult,
    *,
    times: int,
    compacted: bool,
    seed: int = 1,
    crash: Callable[[], Awaitable[None]] | None = None,
) -> Ledger:
    """`crash` ends the server and may do more; the default kills it."""
    began = time.monotonic()
    random = Random(seed)
    ledger = Ledger(server)
    clocks = ClockAudit(server, ledger)
    await server.start()
    tried = 0
    async with Load(server, ledger, random) as load:
        while tried < times and not ledger.violations:
            tried += 1
            await asyncio.sleep(random.uniform(*LOAD_SECONDS))
            await clocks.read()
            await (crash or server.kill)()
            load.pause()
            await load.wait_idle()
            await server.disconnect()
            if tried % LONG_OUTAGE_EVERY == 3:
                await asyncio.sleep(LONG_OUTAGE_SECONDS)
            await server.start()
            await clocks.read()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.wait_idle()
    rows = await final_audit(server, store_database, ledger, compacted=compacted)
    report_result(
        f"tried {tried}, violated {len(ledger.violations)} in {time.monotonic() - began:.1f} s "
        f"({ledger.acked} acknowledged, {ledger.in_doubt} in doubt, of which {ledger.in_doubt_applied} applied; "
        f"{ledger.lapses} leases lapsed; {rows} log rows)"
        + "".join(f"\n  {what}" for what in ledger.violations[:5]),
        tried=tried,
        violated=len(ledger.violations),
    )
    return ledger


async def acknowledged(ledger: Ledger, more: int = 1) -> None:
    """Wait until `more` calls have been acknowledged from now on."""
    wanted, deadline = ledger.acked + more, time.monotonic() + ANSWER_SECONDS_MAX
    while ledger.acked < wanted:
        assert time.monotonic() < deadline, "nobody is answered"
        await asyncio.sleep(0.02)


async def final_audit(
    server: ServerProcess, store_database: StoreDatabase, ledger: Ledger, *, compacted: bool = False
) -> int:
    """Let all leases expire, stop the server gracefully, and audit the database."""
    await audit_workers(server, ledger)
    await expire_all_leases(server, ledger)
    code = await stop(server)
    if code != 0:
        ledger.violate(f"the last stop ended with {code}:\n{server.log_text()}")
    return await audit_database(store_database, ledger, compacted=compacted)


async def stop(server: ServerProcess) -> int:
    code = await server.end(SIGTERM)
    await server.disconnect()
    return code


def check(ledger: Ledger) -> None:
    assert not ledger.violations, "\n".join(ledger.violations[:10])
