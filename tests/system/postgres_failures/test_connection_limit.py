"""When PostgreSQL has no free connection, a server says so, and recovers by itself."""

from __future__ import annotations

import asyncio
import time

from liveness.store.errors import ReadFailed
from liveness.store.postgres import PostgresDatabase
from tests.databases import PostgresServer, postgres_store_database
from tests.system.postgres_failures.outage_run import outage_run
from tests.system.postgres_failures.test_restarts import end_sessions
from tests.system.server.conftest import NO_CHECKPOINTS, NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult
from tests.system.server.server_process import STEP_MS_MAX, Outage, run_to_end

TOO_MANY_CONNECTIONS = "too many connections for role"


def limit(postgres: PostgresServer, role: str, connections: int) -> None:
    postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT {connections}")


def database_of(postgres: PostgresServer, role: str) -> str:
    name = postgres.create_database()
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    postgres.execute(f"ALTER DATABASE {name} OWNER TO {role}")
    return name


async def test_a_server_without_a_connection_refuses_to_start(durable_postgres: PostgresServer) -> None:
    name = database_of(durable_postgres, "latecomer")
    limit(durable_postgres, "latecomer", 0)
    url = durable_postgres.url(name).replace("postgres@", "latecomer@")
    ended = await run_to_end("serve", "--db", url, "--listen", "127.0.0.1:0")
    assert ended.code == 2, ended
    assert TOO_MANY_CONNECTIONS in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_running_server_recovers_from_a_lack_of_connections(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    name = database_of(durable_postgres, "limited")
    url = durable_postgres.url(name).replace("postgres@", "limited@")
    server = make_server(url, environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS)
    async with (
        outage_run(server, postgres_store_database(durable_postgres, name), report_result, seed=5) as run,
        run.failure(),
    ):
        limit(durable_postgres, "limited", 0)
        end_sessions(durable_postgres)
        since = time.monotonic()
        while not any(TOO_MANY_CONNECTIONS in line for line in server.log):
            await asyncio.sleep(0.02)
        server.outages.append(Outage(since, time.monotonic(), STEP_MS_MAX))
        limit(durable_postgres, "limited", -1)


async def test_reads_leave_a_connection_for_commits(durable_postgres: PostgresServer) -> None:
    """However many reads hang, and for however long."""
    database = PostgresDatabase(durable_postgres.url(), 3)
    hanging = [
        asyncio.create_task(database.read(lambda c: c.exec_driver_sql("SELECT pg_sleep(30)").scalar()))
        for _ in range(6)
    ]
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    while await asyncio.to_thread(durable_postgres.execute, asleep) == "0":
        await asyncio.sleep(0.02)
    assert await database.write(lambda c: c.exec_driver_sql("SELECT 1").scalar()) == 1
    assert not any(task.done() for task in hanging), "the commit waited for a read"
    for task in hanging:
        task.cancel()
    ends = await asyncio.gather(*hanging, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError | ReadFailed) for end in ends)
    await database.close()
