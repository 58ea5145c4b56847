"""`kill -9` under load: what was acknowledged survives, what was not is whole or absent, and nobody loses a lease."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from tests.crash.scale import scaled
from tests.databases import PostgresServer, StoreHome, postgres_home
from tests.end_to_end.audit import audit_workers
from tests.end_to_end.campaign import Say, acknowledged, check, crash_again_and_again, wind_up
from tests.end_to_end.conftest import EXPOSED, MakeServer
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load
from tests.end_to_end.server_process import STEP_MS_MAX, Outage

COMPACTING = EXPOSED | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}
"""Checkpoints all the time, instead of never in so short a life."""


async def test_sqlite_whole_log(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    server = make_server(sqlite_url, environ=EXPOSED)
    check(await crash_again_and_again(server, sqlite_file, say, times=4, compacted=False))


async def test_sqlite_while_compacting(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING)
    check(await crash_again_and_again(server, sqlite_file, say, times=4, compacted=True, seed=2))


async def test_postgres(make_server: MakeServer, durable_postgres: PostgresServer, say: Say) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=EXPOSED)
    home = postgres_home(durable_postgres, database)
    check(await crash_again_and_again(server, home, say, times=3, compacted=False))


async def test_postgres_itself_crashes(
    make_server: MakeServer, durable_postgres: PostgresServer, say: Say
) -> None:
    """The server stays, refuses while it cannot commit, and goes on when its database is back."""
    began = time.monotonic()
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=EXPOSED)
    ledger = Ledger(server)
    await server.start()
    times = 2
    async with Load(server, ledger, Random(3)) as load:
        for _ in range(times):
            await acknowledged(ledger, 100)
            await asyncio.to_thread(durable_postgres.crash)
            down_since = time.monotonic()
            await asyncio.sleep(0.5)
            assert server.running, server.said()
            server.outages.append(Outage(down_since, time.monotonic(), STEP_MS_MAX))
            await asyncio.to_thread(durable_postgres.start)
            await acknowledged(ledger, 100)
            load.pause()
            await load.quiet()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.quiet()
    await wind_up(server, postgres_home(durable_postgres, database), ledger)
    violated = len(ledger.violations)
    seconds = time.monotonic() - began
    say(f"tried {times}, violated {violated} in {seconds:.1f} s", tried=times, violated=violated)
    check(ledger)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(100, 104))
async def test_sqlite_long(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say, seed: int
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING if seed % 2 else EXPOSED)
    check(
        await crash_again_and_again(
            server, sqlite_file, say, times=scaled(100), compacted=bool(seed % 2), seed=seed
        )
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(200, 202))
async def test_postgres_long(
    make_server: MakeServer, durable_postgres: PostgresServer, say: Say, seed: int
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=COMPACTING if seed % 2 else EXPOSED)
    home = postgres_home(durable_postgres, database)
    check(
        await crash_again_and_again(server, home, say, times=scaled(50), compacted=bool(seed % 2), seed=seed)
    )
