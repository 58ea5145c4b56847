"""Kill a server under load again and again on the same data, and compare it with the ledger each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from signal import SIGTERM
from typing import Protocol

from tests.databases import StoreHome
from tests.end_to_end.audit import ClockAudit, all_leases_over, audit_database, audit_workers
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load
from tests.end_to_end.server_process import ServerProcess

LOAD_SECONDS = (0.05, 0.5)
LONG_OUTAGE_EVERY = 6
LONG_OUTAGE_SECONDS = 1.5
"""Longer than the shortest lease: an outage must cost nobody."""

ANSWER_SECONDS_MAX = 60


class Say(Protocol):
    def __call__(
        self, text: str, *, tried: int = 0, violated: int = 0, row: str = "", seconds: float | None = None
    ) -> None:
        """Tell the person who runs the tests. `make crash` also keeps how often something was tried: in a row of its
        own, if that has a name, and the seconds that it took of the whole test."""


async def crash_again_and_again(
    server: ServerProcess,
    home: StoreHome,
    say: Say,
    *,
    times: int,
    compacted: bool,
    seed: int = 1,
    crash: Callable[[], Awaitable[None]] | None = None,
) -> Ledger:
    """`crash` ends the server, and whatever else it likes; without it, the server is killed."""
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
            await load.quiet()
            await server.disconnect()
            if tried % LONG_OUTAGE_EVERY == 3:
                await asyncio.sleep(LONG_OUTAGE_SECONDS)
            await server.start()
            await clocks.read()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.quiet()
    rows = await wind_up(server, home, ledger, compacted=compacted)
    say(
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


async def wind_up(server: ServerProcess, home: StoreHome, ledger: Ledger, *, compacted: bool = False) -> int:
    """The last look: let all leases lapse, stop in an orderly way and sum up the database."""
    await audit_workers(server, ledger)
    await all_leases_over(server, ledger)
    code = await stop(server)
    if code != 0:
        ledger.violate(f"the last stop ended with {code}:\n{server.said()}")
    return await audit_database(home, ledger, compacted=compacted)


async def stop(server: ServerProcess) -> int:
    code = await server.end(SIGTERM)
    await server.disconnect()
    return code


def check(ledger: Ledger) -> None:
    assert not ledger.violations, "\n".join(ledger.violations[:10])
