"""`kill -9` under load: what was acknowledged survives, what was not is whole or absent, and nobody loses a lease."""

from __future__ import annotations

import pytest

from tests.databases import PostgresServer, StoreHome, postgres_home
from tests.end_to_end.campaign import Say, check, crash_again_and_again
from tests.end_to_end.conftest import MakeServer

# Without the grace, leases are as exposed as they can be; checkpoints and compaction run all the time or never.
EXPOSED = {"LIVENESS_TAKEOVER_GRACE_MS": "0"}
COMPACTING = EXPOSED | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}


async def test_sqlite_whole_log(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    server = make_server(sqlite_url, environ=EXPOSED)
    check(await crash_again_and_again(server, sqlite_file, say, times=12, compacted=False))


async def test_sqlite_while_compacting(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING)
    check(await crash_again_and_again(server, sqlite_file, say, times=12, compacted=True, seed=2))


async def test_postgres(make_server: MakeServer, durable_postgres: PostgresServer, say: Say) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=EXPOSED)
    home = postgres_home(durable_postgres, database)
    check(await crash_again_and_again(server, home, say, times=6, compacted=False))


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(100, 104))
async def test_sqlite_long(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say, seed: int
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING if seed % 2 else EXPOSED)
    check(
        await crash_again_and_again(server, sqlite_file, say, times=100, compacted=bool(seed % 2), seed=seed)
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(200, 202))
async def test_postgres_long(
    make_server: MakeServer, durable_postgres: PostgresServer, say: Say, seed: int
) -> None:
    database = durable_postgres.create_database()
    server = make_server(durable_postgres.url(database), environ=COMPACTING if seed % 2 else EXPOSED)
    home = postgres_home(durable_postgres, database)
    check(await crash_again_and_again(server, home, say, times=60, compacted=bool(seed % 2), seed=seed))
