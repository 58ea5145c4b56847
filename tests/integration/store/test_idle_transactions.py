"""A node paused within a transaction locks rows; the others still get them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from liveness.store.postgres import PostgresDatabase
from tests.system.cluster.conftest import ClusterDatabase

IDLE_MS = 300
SECONDS_MAX = 30


async def test_the_transaction_of_a_silent_process_is_rolled_back(cluster_database: ClusterDatabase) -> None:
    store = await cluster_database.store_database.open()
    before = {head.shard_id: head.epoch for head in (await store.read_cluster()).shards}
    silent = PostgresDatabase(cluster_database.url, idle_ms_max=IDLE_MS)
    async with silent._engine.connect() as connection:
        await connection.execute(text("UPDATE shards SET epoch = epoch + 1"))
        await asyncio.wait_for(
            cluster_database.store_database.execute("UPDATE shards SET epoch = epoch + 10"), SECONDS_MAX
        )
        with pytest.raises(DBAPIError):
            await connection.execute(text("UPDATE shards SET epoch = epoch + 1"))
        await connection.invalidate()
    await silent.close()
    after = {head.shard_id: head.epoch for head in (await store.read_cluster()).shards}
    assert after == {shard_id: epoch + 10 for shard_id, epoch in before.items()}
    await cluster_database.store_database.close()


async def test_other_nodes_end_a_session_that_no_database_timeout_ends(
    cluster_database: ClusterDatabase,
) -> None:
    store = await cluster_database.store_database.open()
    silent = PostgresDatabase(cluster_database.url, idle_ms_max=IDLE_MS, owner="a-node")
    async with silent._engine.connect() as connection:
        await connection.execute(text("UPDATE shards SET epoch = epoch + 1"))
        # Between preparing a statement and executing it, a session is neither idle nor busy with a statement.
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.prepare("SELECT epoch + 1 FROM shards")
        waiting = asyncio.ensure_future(
            cluster_database.store_database.execute("UPDATE shards SET epoch = epoch + 10")
        )
        await asyncio.wait([waiting], timeout=IDLE_MS * 4 / 1_000)
        assert not waiting.done(), "otherwise the test would prove nothing"
        assert await store.end_sessions_of(["another-node"]) == 0
        assert await store.end_sessions_of(["a-node", "another-node"]) == 1
        await asyncio.wait_for(waiting, SECONDS_MAX)
        await connection.invalidate()
    await silent.close()
    await cluster_database.store_database.close()
