"""The primary is killed and its synchronous standby is promoted: nodes find it, with all acknowledged data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text

from liveness.store.errors import CommitUnknown
from liveness.store.postgres import PostgresDatabase
from tests.databases import STANDBY, PostgresServer, postgres_store_database
from tests.system.postgres_failures.outage_run import outage_run
from tests.system.server.conftest import NO_CHECKPOINTS, NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged

REPLICATES = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'liveness%'"
)


class ReplicatedPostgres:
    """A primary that confirms a commit only when its standby has it."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby = standby

    def url(self, database: str) -> str:
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://postgres@/{database}?{hosts}"

    async def wait(self, query: str) -> str:
        """Wait until the primary answers the query with a true value."""
        while (answer := await asyncio.to_thread(self.primary.execute, query)) in ("", "0"):
            await asyncio.sleep(0.02)
        return answer

    async def synchronous(self) -> None:
        await self.wait(REPLICATES)

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[ReplicatedPostgres]:
    with PostgresServer(fsync=True) as primary:
        standby = PostgresServer(fsync=True, standby_of=primary)
        try:
            standby.start()
            primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
            primary.execute("SELECT pg_reload_conf()")
            yield ReplicatedPostgres(primary, standby)
        finally:
            standby.close()


async def test_acknowledged_heartbeats_survive_a_fail_over(
    pair: ReplicatedPostgres, make_server: MakeServer, report_result: ReportResult
) -> None:
    await pair.synchronous()
    database = pair.primary.create_database()
    server = make_server(pair.url(database), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS)
    async with outage_run(
        server, postgres_store_database(pair.standby, database), report_result, seed=4
    ) as run:
        async with run.failure():
            await asyncio.to_thread(pair.fail_over)
        await acknowledged(run.ledger, 100)
        pair.primary.start()  # the old primary returns beside its successor
        assert not pair.primary.execute(f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}'"), (
            "a node went back to the old primary"
        )


async def test_a_commit_that_the_standby_has_not_confirmed_is_not_acknowledged(
    pair: ReplicatedPostgres,
) -> None:
    """Also if someone cancels the wait, which makes PostgreSQL report success."""
    await pair.synchronous()
    database = PostgresDatabase(pair.primary.url())

    def work(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE IF NOT EXISTS facts (n integer)"))
        connection.execute(text("INSERT INTO facts VALUES (1)"))

    await database.write(work)
    pair.standby.crash()
    committing = asyncio.create_task(database.write(work))
    waiting = await pair.wait(WAITING)
    assert not committing.done()
    pair.primary.execute(f"SELECT pg_cancel_backend({waiting})")
    with pytest.raises(CommitUnknown, match="standby"):
        await committing
    pair.standby.start()
    await database.write(work)
    await database.close()
