"""A take-over raises the epoch, is recorded in the log, and reads everything committed."""

import asyncio

import pytest

from liveness.domain.events import ShardTaken
from liveness.store.api import TAKEOVERS_KEPT
from liveness.store.codec import RenewalState
from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.unit.store.samples import (
    WORKER,
    About,
    available,
    bound_activity,
    described,
    key,
    renewals,
    snapshot_of,
    take,
    take_one,
)


async def test_each_take_over_raises_the_epoch(store: SqlStore) -> None:
    epochs = [(await snapshot_of(store)).epoch for _ in range(3)]
    assert epochs == [1, 2, 3]


async def test_a_take_over_is_recorded_as_an_event(store: SqlStore) -> None:
    [snapshot] = await store.take_over([2], "node-7", wall_ms=123)
    [entry] = await store.read_log(2, after_seq=0, through_seq=snapshot.last_seq, limit=10)
    assert entry.event == ShardTaken(epoch=1, owner="node-7")
    assert (entry.seq, entry.wall_ms, entry.namespace, entry.worker) == (snapshot.last_seq, 123, None, None)


async def test_a_take_over_takes_only_the_named_shards(store: SqlStore) -> None:
    snapshots = await store.take_over([3, 1], "node-1", wall_ms=0)
    assert [snapshot.shard_id for snapshot in snapshots] == [1, 3]
    assert [(await snapshot_of(store, shard_id)).epoch for shard_id in range(SHARD_COUNT)] == [1, 2, 1, 2]


async def test_a_shard_taken_by_another_node_in_the_meantime_is_not_taken(store: SqlStore) -> None:
    view = await store.read_cluster()
    expected_epochs = {head.shard_id: head.epoch for head in view.shards}
    [other_owner] = await store.take_over([2], "node-1", wall_ms=0)
    snapshots = await store.take_over(
        range(SHARD_COUNT), "node-2", wall_ms=0, expected_epochs=expected_epochs
    )
    assert [snapshot.shard_id for snapshot in snapshots] == [0, 1, 3]
    view = await store.read_cluster()
    assert (view.shards[2].owner, view.shards[2].epoch) == ("node-1", other_owner.epoch)


async def test_exactly_one_of_racing_nodes_gets_the_shard(store_database: StoreDatabase) -> None:
    stores = [await store_database.open() for _ in range(4)]
    taken = await asyncio.gather(
        *(
            store.take_over([0], f"node-{n}", wall_ms=0, expected_epochs={0: 0})
            for n, store in enumerate(stores)
        )
    )
    assert sorted(map(len, taken)) == [0, 0, 0, 1]
    [owner] = [f"node-{n}" for n, snapshots in enumerate(taken) if snapshots]
    assert (await stores[0].read_cluster()).shards[0].owner == owner


async def test_only_the_last_take_over_times_are_kept(store: SqlStore) -> None:
    times = []
    for at_ms in range(0, 700, 100):
        owner = await take_one(store)
        times.append(owner.observed_ms)
        owner.observed_ms = at_ms + 100
        await owner.commit()
    snapshot = await snapshot_of(store)
    assert snapshot.takeovers == (*times, 700)[-TAKEOVERS_KEPT:]
    assert len(snapshot.takeovers) == 4


async def test_the_observed_clock_continues_from_the_last_commit(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    owner.observed_ms = 12_345
    await owner.commit()
    assert (await snapshot_of(await store_database.open())).observed_ms == 12_345


async def test_a_take_over_after_a_crash_reads_everything_committed(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    activity_key, activity = available()
    worker = WORKER._replace(number=2, bindings={bound_activity().id: bound_activity()})
    await owner.commit(
        [About(renewals(2, at_ms=40))], workers={key(): worker}, activities={activity_key: activity}
    )
    await owner.commit([About(described("after its row"), key()), About(renewals(2, at_ms=50))])
    snapshot = await snapshot_of(await store_database.open())
    assert (snapshot.workers, snapshot.row_seqs) == ({key(): worker}, {key(): 2})
    assert snapshot.activities == {activity_key: activity}
    assert [(entry.seq, entry.event) for entry in snapshot.tail] == [
        (1, ShardTaken(epoch=1, owner="node-1")),
        (2, renewals(2, at_ms=40)),
        (3, described("after its row")),
        (4, renewals(2, at_ms=50)),
    ]


async def test_events_contained_in_a_worker_row_are_not_read_again(store: SqlStore) -> None:
    owner = await take_one(store)
    about_two = [About(described("in its row"), key("a")), About(described("without a row"), key("b"))]
    await owner.commit(about_two, workers={key("a"): WORKER})
    await owner.commit([About(described("after its row"), key("a"))])
    events = [entry.event for entry in (await snapshot_of(store)).tail]
    assert events[1:] == [described("without a row"), described("after its row")]


async def test_a_take_over_reads_only_rows_of_its_shards(store: SqlStore) -> None:
    first, second = await take(store, 0, 1)
    activity_key, activity = available()
    await first.commit([About(described("0"), key("a"))], workers={key("a"): WORKER})
    await second.commit([About(described("1"), key("b"))], activities={activity_key: activity})
    snapshots = await store.take_over([0, 1], "node-2", wall_ms=0)
    assert [set(snapshot.workers) for snapshot in snapshots] == [{key("a")}, set()]
    assert [set(snapshot.activities) for snapshot in snapshots] == [set(), {activity_key}]
    assert [snapshot.tail[-1].event for snapshot in snapshots] == [described("0"), described("1")]


async def test_events_contained_in_a_checkpoint_are_not_read_again(store: SqlStore) -> None:
    owner = await take_one(store)
    renewal_state = RenewalState(number=1, sequence=9, renewed_ms=80, successes=5, errors=1, resync=True)
    await owner.commit([About(renewals(1))], workers={key(): WORKER})
    await owner.commit([About(described("in the checkpoint"), key())], checkpoint=[renewal_state])
    await owner.commit([About(described("after it"), key())])
    snapshot = await snapshot_of(store)
    assert snapshot.checkpoint_seq == owner.head - 1
    renewed = WORKER._replace(sequence=9, renewed_ms=80, successes=5, errors=1, resync=True)
    assert (snapshot.workers, snapshot.row_seqs) == ({key(): renewed}, {})
    assert [entry.event for entry in snapshot.tail] == [described("after it")]


async def test_a_shard_without_a_checkpoint_is_read_from_its_start_beside_one_with_a_checkpoint(
    store: SqlStore,
) -> None:
    first, second = await take(store, 0, 1)
    await second.commit([About(described("before the other's checkpoint"), key())])
    await first.commit([About(described(), key())], checkpoint=[])
    snapshots = await store.take_over([0, 1], "node-2", wall_ms=0)
    assert [entry.event for entry in snapshots[0].tail] == []
    assert snapshots[1].tail[-1].event == described("before the other's checkpoint")


async def test_shards_with_different_checkpoints_are_each_read_from_their_own(
    store: SqlStore,
) -> None:
    """One scan reads both, starting at the older checkpoint."""
    first, second = await take(store, 0, 1)
    await second.commit(checkpoint=[])
    await second.commit([About(described("the other's first"), key())])
    await first.commit([About(described("in the checkpoint"), key())], checkpoint=[])
    await first.commit([About(described("after it"), key())])
    await second.commit([About(described("the other's second"), key())])
    snapshots = await store.take_over([0, 1], "node-2", wall_ms=0)
    assert [[entry.event for entry in snapshot.tail] for snapshot in snapshots] == [
        [described("after it")],
        [described("the other's first"), described("the other's second")],
    ]


async def test_sequences_have_no_gaps_across_owners_and_commits(store: SqlStore) -> None:
    for turn in range(3):
        owner = await take_one(store)
        await owner.commit([About(described(str(turn)), key()), About(renewals(1))])
        await owner.commit([About(described(), key())])
    snapshot = await snapshot_of(store)
    assert [entry.seq for entry in snapshot.tail] == list(range(1, snapshot.last_seq))


async def test_racing_nodes_get_different_epochs_and_only_the_last_may_write(
    store_database: StoreDatabase,
) -> None:
    stores = [await store_database.open() for _ in range(4)]
    owners = await asyncio.gather(*(take_one(store) for store in stores))
    assert sorted(owner.epoch for owner in owners) == [1, 2, 3, 4]
    for owner in owners:
        if owner.epoch == 4:
            await owner.commit([About(described(), key())])
        else:
            with pytest.raises(ShardsLost):
                await owner.commit([About(described(), key())])


async def test_a_take_over_either_reads_a_concurrent_commit_or_fences_it(
    store_database: StoreDatabase,
) -> None:
    """In either order an event is acknowledged only if the new owner reads it."""
    old = await take_one(await store_database.open())
    new = await store_database.open()
    for turn in range(20):
        committing = asyncio.ensure_future(old.commit([About(described(str(turn)), key())]))
        [snapshot] = await new.take_over([0], "node-2", wall_ms=0)
        try:
            await committing
            acknowledged = True
        except ShardsLost:
            acknowledged = False
        assert (snapshot.tail[-1].event == described(str(turn))) is acknowledged
        old = await take_one(old.store)
