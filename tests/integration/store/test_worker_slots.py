"""A worker quota shared by several nodes is never exceeded and can be used completely."""

import asyncio

import pytest

from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase


async def take_all(store: SqlStore) -> dict[int, int]:
    return {
        snapshot.shard_id: snapshot.epoch for snapshot in await store.take_over(range(SHARD_COUNT), "node", 0)
    }


async def test_racing_shards_are_granted_exactly_the_quota(store_database: StoreDatabase) -> None:
    stores = [await store_database.open() for _ in range(3 if store_database.dialect == "postgresql" else 1)]
    epochs = await take_all(stores[0])

    async def ask(number: int) -> int:
        shard_id = number % SHARD_COUNT
        return await stores[number % len(stores)].grant_slots(shard_id, epochs[shard_id], "orders", 1, 10)

    await asyncio.gather(*(ask(number) for number in range(40)))
    granted = {
        shard_id: await stores[0].grant_slots(shard_id, epochs[shard_id], "orders", 0, 10)
        for shard_id in epochs
    }
    assert sum(granted.values()) == 10
    assert await stores[0].grant_slots(0, epochs[0], "bills", 1, 10) == 1, "namespaces do not share"


async def test_returned_slots_can_be_granted_to_other_shards(store: SqlStore) -> None:
    epochs = await take_all(store)
    assert await store.grant_slots(0, epochs[0], "orders", 5, 5) == 5
    assert await store.grant_slots(1, epochs[1], "orders", 1, 5) == 0
    await store.return_slots({0: epochs[0]}, "orders", {0: 3})
    assert await store.grant_slots(1, epochs[1], "orders", 9, 5) == 2
    await store.return_slots({0: epochs[0]}, "orders", {0: 0})
    snapshots = {snapshot.shard_id: snapshot.slots for snapshot in await store.take_over(range(2), "next", 0)}
    assert snapshots == {0: {}, 1: {"orders": 2}}, "the next owner of a shard keeps its granted slots"


async def test_a_former_owner_is_granted_no_slots(store: SqlStore) -> None:
    epochs = await take_all(store)
    await store.take_over([0], "next", 0)
    with pytest.raises(ShardsLost):
        await store.grant_slots(0, epochs[0], "orders", 1, 10)
    with pytest.raises(ShardsLost):
        await store.return_slots({0: epochs[0]}, "orders", {0: 0})
