"""PostgreSQL restarts, crashes, or ends sessions under load: the server loses nothing, and recovers without help."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.scale import scaled
from tests.databases import PostgresServer, postgres_store_database
from tests.system.postgres_failures.outage_run import OutageRun, outage_run
from tests.system.server.conftest import NO_CHECKPOINTS, NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult

LONGER_THAN_A_LEASE_S = 2.0


async def restarts(run: OutageRun, postgres: PostgresServer, seconds: float) -> None:
    async with run.failure():
        await run.down(postgres.stop, postgres.start, seconds)


async def crashes(run: OutageRun, postgres: PostgresServer, seconds: float) -> None:
    async with run.failure():
        await run.down(postgres.crash, postgres.start, seconds)


async def sessions_end(run: OutageRun, postgres: PostgresServer) -> None:
    async with run.failure():
        ended = await asyncio.to_thread(end_sessions, postgres)
        assert ended > 0


def end_sessions(postgres: PostgresServer) -> int:
    """Terminate every PostgreSQL backend that serves liveness."""
    return int(
        postgres.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'liveness%'"
        )
    )


async def test_a_restart_of_postgres_loses_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS)
    async with outage_run(server, postgres_store_database(durable_postgres, database), report_result) as run:
        await restarts(run, durable_postgres, LONGER_THAN_A_LEASE_S)
        await crashes(run, durable_postgres, 0)


async def test_ended_sessions_lose_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS)
    async with outage_run(
        server, postgres_store_database(durable_postgres, database), report_result, seed=2
    ) as run:
        for _ in range(4):
            await sessions_end(run, durable_postgres)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(300, 302))
async def test_repeated_failures_of_postgres_lose_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult, seed: int
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS)
    async with outage_run(
        server, postgres_store_database(durable_postgres, database), report_result, seed
    ) as run:
        for number in range(scaled(15)):
            await restarts(run, durable_postgres, number % 3)
            await crashes(run, durable_postgres, number % 2)
            await sessions_end(run, durable_postgres)
