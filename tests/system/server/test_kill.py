"""After `kill -9` under load, acknowledged calls survive, others are applied whole or not at all, and no lease is lost."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from tests.crash.scale import scaled
from tests.databases import PostgresServer, StoreDatabase, postgres_store_database
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged, check, crash_repeatedly, final_audit
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import STEP_MS_MAX, Outage

COMPACTING = NO_TAKEOVER_GRACE | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}
"""Checkpoints run all the time; at the default interval, none would run in so short a test."""


async def test_kills_lose_no_acknowledged_heartbeat_on_sqlite(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, report_result: ReportResult
) -> None:
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    check(await crash_repeatedly(server, sqlite_database, report_result, times=4, compacted=False))


async def test_kills_lose_no_acknowledged_heartbeat_on_sqlite_while_compacting(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, report_result: ReportResult
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING)
    check(await crash_repeatedly(server, sqlite_database, report_result, times=4, compacted=True, seed=2))


async def test_kills_lose_no_acknowledged_heartbeat_on_postgres(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=NO_TAKEOVER_GRACE)
    store_database = postgres_store_database(durable_postgres, database)
    check(await crash_repeatedly(server, store_database, report_result, times=3, compacted=False))


async def test_a_crash_of_postgres_loses_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    """The server keeps running, refuses calls while it cannot commit, and recovers with its database."""
    began = time.monotonic()
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    times = 2
    async with Load(server, ledger, Random(3)) as load:
        for _ in range(times):
            await acknowledged(ledger, 100)
            await asyncio.to_thread(durable_postgres.crash)
            down_since = time.monotonic()
            await asyncio.sleep(0.5)
            assert server.running, server.log_text()
            server.outages.append(Outage(down_since, time.monotonic(), STEP_MS_MAX))
            await asyncio.to_thread(durable_postgres.start)
            await acknowledged(ledger, 100)
            load.pause()
            await load.wait_idle()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.wait_idle()
    await final_audit(server, postgres_store_database(durable_postgres, database), ledger)
    violated = len(ledger.violations)
    seconds = time.monotonic() - began
    report_result(f"tried {times}, violated {violated} in {seconds:.1f} s", tried=times, violated=violated)
    check(ledger)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(100, 104))
async def test_many_kills_lose_no_acknowledged_heartbeat_on_sqlite(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    report_result: ReportResult,
    seed: int,
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING if seed % 2 else NO_TAKEOVER_GRACE)
    check(
        await crash_repeatedly(
            server, sqlite_database, report_result, times=scaled(100), compacted=bool(seed % 2), seed=seed
        )
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(200, 202))
async def test_many_kills_lose_no_acknowledged_heartbeat_on_postgres(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult, seed: int
) -> None:
    database = durable_postgres.create_database()
    server = make_server(
        durable_postgres.url(database), environ=COMPACTING if seed % 2 else NO_TAKEOVER_GRACE
    )
    store_database = postgres_store_database(durable_postgres, database)
    check(
        await crash_repeatedly(
            server, store_database, report_result, times=scaled(50), compacted=bool(seed % 2), seed=seed
        )
    )
