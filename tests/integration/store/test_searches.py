"""What clients search for may take long; the server's own reads, and searches in other namespaces, do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from liveness.store.errors import ReadFailed
from liveness.store.postgres import PostgresDatabase
from liveness.store.search_turns import SEARCHES_PER_NAMESPACE_MAX, SearchTurns
from liveness.store.sqlite import SqliteDatabase

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT 2 FROM c) SELECT count(*) FROM c"


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        database: Any = SqliteDatabase(tmp_path / "liveness.db")
    else:
        name = request.getfixturevalue("postgres_database")
        database = PostgresDatabase(request.getfixturevalue("postgres").url(name), connections_max=5)
    yield database
    await database.close()


def run(statement: str) -> Any:
    return lambda connection: connection.execute(text(statement)).scalar()


async def test_the_servers_own_reads_do_not_wait_for_searches(database: Any) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def search(connection: Connection) -> Any:
        loop.call_soon_threadsafe(started.set)
        return run(ENDLESS)(connection)

    searches = [asyncio.ensure_future(database.search(search)) for _ in range(4)]
    await started.wait()
    assert await database.read(run("SELECT 1")) == 1
    # When their callers have gone, they end, and the next one is served.
    for each in searches:
        each.cancel()
    await asyncio.gather(*searches, return_exceptions=True)
    assert await database.search(run("SELECT 2")) == 2


async def test_a_search_ends_after_its_time(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sqlite", "postgres"):
        monkeypatch.setattr(f"liveness.store.{module}.SEARCH_S_MAX", 0.1)
    await database.search(run("SELECT 1"))
    with pytest.raises(ReadFailed, match="did not answer within"):
        await database.search(run(ENDLESS))
    assert await database.search(run("SELECT 2")) == 2


async def test_searches_of_a_namespace_leave_room_for_others() -> None:
    turns = SearchTurns()
    running: list[str] = []
    end = asyncio.Event()

    async def search(namespace: str) -> None:
        async with turns.turn(namespace):
            running.append(namespace)
            await end.wait()

    tasks = [asyncio.ensure_future(search("busy")) for _ in range(10)]
    tasks.append(asyncio.ensure_future(search("other")))
    while "other" not in running:
        await asyncio.sleep(0)
    assert running.count("busy") == SEARCHES_PER_NAMESPACE_MAX
    tasks[5].cancel()
    end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert running.count("busy") == 9
    assert turns._rooms == {}
