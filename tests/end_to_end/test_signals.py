"""An orderly end answers everybody and loses nothing; standing still costs nobody a lease."""

from __future__ import annotations

import asyncio
from random import Random
from signal import SIGINT, SIGTERM, Signals

import pytest

from liveness.store.schema import checkpoints, shards
from tests.databases import StoreHome
from tests.end_to_end.audit import ClockAudit, audit_workers
from tests.end_to_end.campaign import check, wind_up
from tests.end_to_end.conftest import EXPOSED, MakeServer
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load

LOAD_SECONDS = 0.5


@pytest.mark.parametrize("how", [SIGTERM, SIGINT])
async def test_an_orderly_end_under_load(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, how: Signals
) -> None:
    """Whatever was applied was also answered; a checkpoint is left behind, and the next start finds all of it."""
    server = make_server(sqlite_url, environ=EXPOSED)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(5)) as load:
        for _ in range(2):
            await asyncio.sleep(LOAD_SECONDS)
            code = await server.end(how)
            load.pause()
            await load.quiet()
            await server.disconnect()
            assert code == 0, server.said()
            assert "Traceback" not in server.said()
            assert '"stopped"' in server.log[-1]
            await _assert_checkpointed(sqlite_file)
            await server.start()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.quiet()
    assert ledger.acked > 0
    assert ledger.in_doubt_applied == 0, "a heartbeat was applied and its sender not told"
    await wind_up(server, sqlite_file, ledger)
    check(ledger)


async def _assert_checkpointed(home: StoreHome) -> None:
    dump = await home.dump()
    heads = {row[0]: row[list(shards.columns.keys()).index("last_seq")] for row in dump["shards"]}
    made = {row[0]: row[list(checkpoints.columns.keys()).index("seq")] for row in dump["checkpoints"]}
    assert made == heads


async def test_an_end_without_load_is_quick_and_clean(make_server: MakeServer, sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    await server.start()
    assert await server.end(SIGINT) == 0
    assert "Traceback" not in server.said()


async def test_standing_still_longer_than_the_leases(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome
) -> None:
    """SIGSTOP and SIGCONT: the clock counts a second at most, and who goes on heartbeating keeps his lease."""
    server = make_server(sqlite_url, environ=EXPOSED)
    ledger = Ledger(server)
    clocks = ClockAudit(server, ledger)
    await server.start()
    async with Load(server, ledger, Random(6), leases_ms=[3_000]) as load:
        await asyncio.sleep(LOAD_SECONDS)
        await clocks.read()
        await server.freeze(4)
        await clocks.read()
        await asyncio.sleep(LOAD_SECONDS)
        load.pause()
        await load.quiet()
    await audit_workers(server, ledger)
    assert ledger.lapsed("unary") + ledger.lapsed("batch") == []
    assert ledger.in_doubt == 0
    await wind_up(server, sqlite_file, ledger)
    check(ledger)


async def test_standing_still_while_nobody_calls(make_server: MakeServer, sqlite_url: str) -> None:
    """Then no commit is on its way that would hold up the clock, and still it counts a second at most."""
    server = make_server(sqlite_url)
    ledger = Ledger(server)
    clocks = ClockAudit(server, ledger)
    await server.start()
    await clocks.read()
    await server.freeze(2.5)
    await clocks.read()
    check(ledger)
