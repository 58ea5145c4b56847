"""Compaction and retention delete only rows that are no longer needed."""

from collections.abc import Awaitable, Callable

import pytest

from liveness.domain.activity import ActivityState
from liveness.domain.events import ConfigChanged
from liveness.store.api import TaskState, TaskUpdate
from liveness.store.codec import LogEntry, RenewalBatch
from liveness.store.errors import ShardsLost
from liveness.store.retention import DELETE_BATCH
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import (
    About,
    Owner,
    activity,
    described,
    finished,
    key,
    renewals,
    reschedule,
    snapshot_of,
    take,
    take_one,
)


async def logged(store_database: StoreDatabase) -> list[tuple[int, int, str]]:
    """Return (shard, sequence, kind) of every log row in order."""
    return [(row[1], row[2], row[3]) for row in (await store_database.dump())["log"]]


async def renewals_left(store_database: StoreDatabase) -> list[tuple[int, int]]:
    return [
        (shard_id, seq) for shard_id, seq, kind in await logged(store_database) if kind == "LeasesRenewed"
    ]


def owned(*owners: Owner) -> dict[int, int]:
    return {owner.shard_id: owner.epoch for owner in owners}


async def test_compaction_deletes_only_renewals_behind_the_checkpoint(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    await owner.commit([About(renewals(1)), About(described(), key()), About(renewals(1))], checkpoint=[])
    await owner.commit([About(renewals(1)), About(described(), key())])
    assert await store.compact_renewals(owner.owned) == 2
    assert [(seq, kind) for _, seq, kind in await logged(store_database)] == [
        (1, "ShardTaken"),
        (3, "WorkerDescribed"),
        (5, "LeasesRenewed"),
        (6, "WorkerDescribed"),
    ]


async def test_without_a_checkpoint_nothing_is_compacted(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    await owner.commit([About(renewals(1))])
    assert await store.compact_renewals(owner.owned) == 0
    assert await renewals_left(store_database) == [(0, 2)]


async def test_compaction_keeps_renewals_of_a_shard_with_an_older_checkpoint(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    """The shard's checkpoint is older than the other's, and its renewals lie between the two; both have newer
    ones."""
    ahead, behind = await take(store, 0, 1)
    await behind.commit(checkpoint=[])
    await behind.commit([About(renewals(1))])
    await ahead.commit([About(renewals(1))], checkpoint=[])
    await ahead.commit([About(renewals(1))])
    await store.compact_renewals(owned(ahead, behind))
    assert (1, behind.head) in await renewals_left(store_database)
    snapshot = await snapshot_of(await store_database.open(), 1)
    assert [entry.event for entry in snapshot.tail if isinstance(entry.event, RenewalBatch)] == [renewals(1)]


async def test_compaction_does_not_touch_shards_of_other_owners(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    mine, other = await take(store, 0, 1)
    await other.commit([About(renewals(1))], checkpoint=[])
    await mine.commit([About(renewals(1))], checkpoint=[])
    assert await store.compact_renewals(mine.owned) == 1
    assert await renewals_left(store_database) == [(1, 2)]


async def test_a_quiet_shard_neither_blocks_compaction_nor_loses_later_renewals(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    busy, quiet = await take(store, 0, 1)
    await quiet.commit([About(renewals(1))], checkpoint=[])
    await busy.commit([About(renewals(1)), About(renewals(1))], checkpoint=[])
    assert await store.compact_renewals(owned(busy, quiet)) == 3
    await quiet.commit([About(renewals(1))])
    await busy.commit([About(renewals(1))], checkpoint=[])
    await store.compact_renewals(owned(busy, quiet))
    assert (1, quiet.head) in await renewals_left(store_database)


async def test_repeated_compaction_deletes_new_renewals(store: SqlStore) -> None:
    owner = await take_one(store)
    for _ in range(3):
        await owner.commit([About(renewals(1))], checkpoint=[])
        assert await store.compact_renewals(owner.owned) == 1
        assert await store.compact_renewals(owner.owned) == 0


async def test_renewals_of_a_shard_taken_from_another_node_are_compacted_too(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    """They precede the part of the log that this node has compacted already."""
    mine = await take_one(store, 0)
    other = await take_one(await store_database.open(), 1)
    await other.commit([About(renewals(1))])
    await mine.commit([About(renewals(1))], checkpoint=[])
    assert await store.compact_renewals(mine.owned) == 1
    inherited = await take_one(store, 1)
    await inherited.commit(checkpoint=[])
    await store.compact_renewals(owned(mine, inherited))
    assert await renewals_left(store_database) == []


async def test_recovery_reads_all_rows_written_after_compaction(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    """The log never reuses the id of a deleted row; otherwise the new row would lie behind the checkpoint."""
    owner = await take_one(store)
    for index in range(5):
        await owner.commit([About(renewals(1))], checkpoint=[])
        await store.compact_renewals(owner.owned)
        await store.prune_events(owner.owned, {}, default_cutoff=2**62)
        assert await logged(store_database) == []
        await owner.commit([About(described(str(index)), key())])
        snapshot = await snapshot_of(await store_database.open())
        assert [entry.event for entry in snapshot.tail] == [described(str(index))]
        owner = await take_one(store)


async def test_compaction_deletes_more_than_one_batch(store: SqlStore) -> None:
    owner = await take_one(store)
    count = DELETE_BATCH + 1
    await owner.commit([About(renewals(1)) for _ in range(count)], checkpoint=[])
    assert await store.compact_renewals(owner.owned) == count


async def test_events_older_than_the_cutoff_of_their_namespace_are_deleted(store: SqlStore) -> None:
    owner = await take_one(store)
    for namespace in ("short", "long", "for-ever", "default"):
        await owner.commit(
            [About(described(), key(namespace=namespace), wall_ms=at) for at in (100, 200, 300)]
        )
    await owner.commit(checkpoint=[])
    cutoffs = {"short": 300, "long": 150, "for-ever": 0}
    assert await store.prune_events(owner.owned, cutoffs, default_cutoff=200) == 2 + 1 + 0 + 1
    assert await times_left(store, owner) == {
        "short": [300],
        "long": [200, 300],
        "for-ever": [100, 200, 300],
        "default": [200, 300],
    }


async def times_left(store: SqlStore, owner: Owner) -> dict[str, list[int]]:
    left: dict[str, list[int]] = {}
    for entry in await store.read_log(owner.shard_id, 0, owner.head, 1_000):
        if entry.namespace is not None:
            left.setdefault(entry.namespace, []).append(entry.wall_ms)
    return left


async def test_a_default_cutoff_of_zero_keeps_everything(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=1)], checkpoint=[])
    before = await store_database.dump()
    assert await store.prune_events(owner.owned, {}, default_cutoff=0) == 0
    assert await store_database.dump() == before


async def test_events_without_a_namespace_use_the_default_cutoff(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    await owner.commit(checkpoint=[])
    assert await store.prune_events(owner.owned, {"orders": 2**62}, default_cutoff=0) == 0
    assert await store.prune_events(owner.owned, {"orders": 0}, default_cutoff=2**62) == 1
    assert await logged(store_database) == []


async def test_events_after_the_checkpoint_are_never_deleted(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described("before"), key(), wall_ms=1)], checkpoint=[])
    await owner.commit([About(described("after"), key(), wall_ms=1)])
    await store.prune_events(owner.owned, {}, default_cutoff=2**62)
    assert [entry.event for entry in (await snapshot_of(store)).tail] == [described("after")]


async def test_without_a_checkpoint_no_event_is_pruned(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=1)])
    assert await store.prune_events(owner.owned, {}, default_cutoff=2**62) == 0


async def test_pruning_keeps_renewals_and_other_shards(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    mine, other = await take(store, 0, 1)
    for owner in (mine, other):
        await owner.commit([About(renewals(1)), About(described(), key(str(owner.shard_id)))], checkpoint=[])
    assert await store.prune_events(mine.owned, {}, default_cutoff=2**62) == 2
    assert await logged(store_database) == [
        (1, 1, "ShardTaken"),
        (0, 2, "LeasesRenewed"),
        (1, 2, "LeasesRenewed"),
        (1, 3, "WorkerDescribed"),
    ]


async def test_only_finished_tasks_older_than_the_cutoff_are_pruned(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule(name) for name in ("old", "new", "discarded", "dead", "open")])
    dead = TaskUpdate(4, TaskState.DEAD_LETTERED, due_ms=0, attempts=9, last_error="no")
    owner.wall_ms = 1_000
    await owner.commit(task_updates=[finished(1), finished(3, TaskState.DISCARDED), dead])
    owner.wall_ms = 2_000
    await owner.commit(task_updates=[finished(2)])
    assert await store.prune_tasks(owner.owned, 2_000) == 2
    assert [task.task_id for task in await store.list_tasks(None, list(TaskState), 0, 10)] == [2, 4, 5]


Deletion = Callable[[SqlStore, dict[int, int]], Awaitable[int]]


@pytest.mark.parametrize(
    "delete",
    [
        pytest.param(lambda store, owned: store.compact_renewals(owned), id="compact"),
        pytest.param(lambda store, owned: store.prune_events(owned, {}, 2**62), id="prune events"),
        pytest.param(lambda store, owned: store.prune_tasks(owned, 2**62), id="prune tasks"),
        pytest.param(lambda store, owned: store.prune_activities(owned, {}, 2**62), id="prune activities"),
    ],
)
async def test_a_former_owner_cannot_delete_anything(
    store_database: StoreDatabase, store: SqlStore, delete: Deletion
) -> None:
    kept, lost = await take(store, 0, 1)
    for owner in (kept, lost):
        name, done = activity(str(owner.shard_id), ActivityState.COMPLETED)
        await owner.commit(
            [About(renewals(1)), About(described(), key())], new_tasks=[reschedule()], activities={name: done}
        )
        await owner.commit(task_updates=[finished(owner.shard_id + 1)], checkpoint=[])
    await (await store_database.open()).take_over([1], "node-2", wall_ms=0)
    before = await store_database.dump()
    with pytest.raises(ShardsLost) as refused:
        await delete(store, owned(kept, lost))
    assert refused.value.shard_ids == {1}
    assert await store_database.dump() == before
    assert await delete(store, kept.owned) > 0


async def test_config_changes_are_stored_as_events(store: SqlStore) -> None:
    owner = await take_one(store)
    change = ConfigChanged(set={"max_workers": 5.0}, unset=("cleanup_delay_ms",))
    await owner.commit([About(change, namespace="orders")])
    entries: list[LogEntry] = await store.read_log(0, 1, owner.head, 10, namespace="orders")
    assert [entry.event for entry in entries] == [change]
