"""A hand-over of a shard includes all earlier decisions."""

from __future__ import annotations

import asyncio

from liveness.clock import ManualClock
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import Engine


async def test_the_next_owner_reads_everything_decided_before_the_hand_over(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    clock = ManualClock()
    old = await Engine(store, clock).start()
    await old.beat("known", sequence=1, session_id="s")
    waiting = [
        asyncio.create_task(old.beat("known", sequence=2, session_id="s")),
        asyncio.create_task(old.beat("new", sequence=1, session_id="s")),
    ]
    await asyncio.sleep(0)  # both are decided and wait for the commit
    assert (old.worker("known").sequence, old.worker("new").sequence) == (2, 1)
    assert len(await old.node.hand_over(range(SHARD_COUNT))) == SHARD_COUNT
    assert [answer.lease_epoch for answer in await asyncio.gather(*waiting)] == [1, 1]
    new = await Engine(await store_database.open(), clock).start()
    assert (new.worker("known").sequence, new.worker("new").sequence) == (2, 1)
    await new.stop()
    await old.crash()
