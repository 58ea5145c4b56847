"""A node that stands still in the middle of a transaction holds rows; others get them all the same."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from liveness.store.postgres import PostgresDatabase
from tests.cluster.conftest import Place

IDLE_MS = 300
SECONDS_MAX = 30


async def test_a_transaction_whose_process_is_silent_is_undone(place: Place) -> None:
    store = await place.home.open()
    before = {head.shard_id: head.epoch for head in (await store.look_at_cluster()).shards}
    silent = PostgresDatabase(place.url, idle_ms_max=IDLE_MS)
    async with silent._engine.connect() as connection:
        await connection.execute(text("UPDATE shards SET epoch = epoch + 1"))
        await asyncio.wait_for(place.home.execute("UPDATE shards SET epoch = epoch + 10"), SECONDS_MAX)
        with pytest.raises(DBAPIError):
            await connection.execute(text("UPDATE shards SET epoch = epoch + 1"))
        await connection.invalidate()
    await silent.close()
    after = {head.shard_id: head.epoch for head in (await store.look_at_cluster()).shards}
    assert after == {shard_id: epoch + 10 for shard_id, epoch in before.items()}
    await place.home.close()
