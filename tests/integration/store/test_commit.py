"""The group commit: atomic, and valid only for the epoch and head it was built for."""

from collections.abc import Callable

import pytest

from liveness.domain.verdicts import VerdictCounts
from liveness.store.api import ShardCommit
from liveness.store.errors import CommitRejected, ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import (
    INT64_MAX,
    WORKER,
    About,
    Owner,
    available,
    described,
    finished,
    key,
    profile,
    renewals,
    reschedule,
    snapshot_of,
    take,
    take_one,
)


def everything(owner: Owner) -> ShardCommit:
    """A commit that touches every table."""
    activity_key, activity = available()
    return owner.draft(
        [About(described("new"), key()), About(renewals(1))],
        workers={key(): WORKER, key("gone"): None},
        activities={activity_key: activity},
        new_tasks=[reschedule("another")],
        task_updates=[finished(1)],
        config={"orders": {"max_workers": 5.0}},
        checkpoint=[],
        verdicts={"orders": VerdictCounts(deaths=1)},
    )


async def prepared(store: SqlStore, shard_id: int = 0) -> Owner:
    """A shard with a worker row that `everything` deletes and a task that it finishes."""
    owner = await take_one(store, shard_id)
    await owner.commit(
        [About(described(), key("gone"))], workers={key("gone"): WORKER}, new_tasks=[reschedule()]
    )
    return owner


async def test_a_commit_writes_every_table_it_names(store_database: StoreDatabase, store: SqlStore) -> None:
    owner = await prepared(store)
    before = await store_database.dump()
    await store.commit([everything(owner)])
    after = await store_database.dump()
    assert {name for name in after if after[name] != before[name]} == {
        "activities",
        "checkpoints",
        "config",
        "log",
        "shards",
        "tasks",
        "verdicts",
        "workers",
    }
    assert [row[1] for row in after["workers"]] == ["worker-1"]


async def test_a_commit_without_events_writes_only_the_clock(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    owner.observed_ms = 777
    before = await store_database.dump()
    await owner.commit()
    after = await store_database.dump()
    assert {name for name in after if after[name] != before[name]} == {"shards"}
    assert after["shards"][0][3] == 777


async def test_one_commit_can_cover_several_shards(store_database: StoreDatabase, store: SqlStore) -> None:
    first, second = await take(store, 0, 1)
    drafts = [owner.draft([About(described(), key(str(owner.shard_id)))]) for owner in (first, second)]
    await store.commit(drafts)
    assert [row[2] for row in (await store_database.dump())["shards"]] == [2, 2, 0, 0]


async def test_a_failure_of_the_last_statement_rolls_back_the_first(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await prepared(store)
    draft = everything(owner)
    draft.checkpoint = (-1, [])  # not a valid sequence: the table refuses it
    before = await store_database.dump()
    with pytest.raises(CommitRejected):
        await store.commit([draft])
    assert await store_database.dump() == before


async def test_the_commit_after_a_rejected_one_succeeds(store: SqlStore) -> None:
    owner = await prepared(store)
    with pytest.raises(CommitRejected):
        await store.commit([owner.draft(checkpoint=[], observed_ms=-1)])
    await owner.commit([About(described("after"), key())])
    assert (await snapshot_of(store)).tail[-1].event == described("after")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda draft: setattr(draft, "epoch", draft.epoch - 1), id="an older epoch"),
        pytest.param(lambda draft: setattr(draft, "epoch", draft.epoch + 1), id="an epoch of the future"),
        pytest.param(
            lambda draft: setattr(draft, "after_seq", draft.after_seq - 1), id="a head that has moved on"
        ),
        pytest.param(
            lambda draft: setattr(draft, "after_seq", draft.after_seq + 1), id="a head not reached yet"
        ),
    ],
)
async def test_a_commit_with_a_wrong_epoch_or_head_changes_nothing(
    store_database: StoreDatabase, store: SqlStore, spoil: Callable[[ShardCommit], None]
) -> None:
    owner = await prepared(store)
    draft = everything(owner)
    spoil(draft)
    before = await store_database.dump()
    with pytest.raises(ShardsLost) as lost:
        await store.commit([draft])
    assert lost.value.shard_ids == {0}
    assert await store_database.dump() == before


async def test_a_refused_commit_names_exactly_the_lost_shards(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owners = await take(store, 0, 1, 2, 3)
    await (await store_database.open()).take_over([1, 3], "node-2", wall_ms=0)
    before = await store_database.dump()
    drafts = [owner.draft([About(described(), key(str(owner.shard_id)))]) for owner in owners]
    with pytest.raises(ShardsLost) as lost:
        await store.commit(drafts)
    assert lost.value.shard_ids == {1, 3}
    assert str(lost.value) == "Another owner took over shards [1, 3]."
    assert await store_database.dump() == before
    await store.commit([draft for draft in drafts if draft.shard_id not in lost.value.shard_ids])


async def test_a_stale_head_is_detected_beside_a_clock_only_commit(
    store: SqlStore,
) -> None:
    """A clock-only commit does not change its head and must neither count as lost nor hide a lost shard."""
    first, second = await take(store, 0, 1)
    await second.commit([About(described(), key())])
    stale = second.draft([About(described(), key())], after_seq=second.head - 1)
    with pytest.raises(ShardsLost) as lost:
        await store.commit([first.draft(), stale])
    assert lost.value.shard_ids == {1}


async def test_a_shard_that_does_not_exist_is_lost(store: SqlStore) -> None:
    owner = await take_one(store)
    with pytest.raises(ShardsLost) as lost:
        await store.commit([owner.draft(shard_id=99)])
    assert lost.value.shard_ids == {99}


async def test_a_thousand_rows_go_in_one_commit(store: SqlStore) -> None:
    owner = await take_one(store)
    names = [f"worker-{index:04}" for index in range(1_000)]
    await owner.commit(
        [About(described(name), key(name)) for name in names],
        workers={key(name): WORKER._replace(profile=profile(host_name=name)) for name in names},
        new_tasks=[reschedule(name) for name in names],
    )
    snapshot = await snapshot_of(store)
    logged = await store.read_log(0, 1, owner.head, 2_000)
    assert [entry.event for entry in logged] == [described(name) for name in names]
    assert {key.instance_key: worker.profile.host_name for key, worker in snapshot.workers.items()} == dict(
        zip(names, names, strict=True)
    )
    assert [task.task.activity.activity_id for task in await store.due_tasks(0, 0, 2_000)] == names


async def test_a_commit_replaces_the_whole_row_of_a_worker(store: SqlStore) -> None:
    owner = await take_one(store)
    first = WORKER._replace(profile=profile(task_queue="a", build_id="b", host_name="h"), last_error="broken")
    await owner.commit([About(described(), key())], workers={key(): first})
    second = WORKER._replace(epoch=2)
    await owner.commit([About(described(), key())], workers={key(): second})
    assert (await snapshot_of(store)).workers == {key(): second}


async def test_config_is_replaced_per_namespace(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(config={"orders": {"max_workers": 5.0}, "": {"cleanup_delay_ms": 1.0}})
    await owner.commit(config={"orders": {"worker_heartbeat_rate": 0.5}})
    assert await store.load_config() == {
        "orders": {"worker_heartbeat_rate": 0.5},
        "": {"cleanup_delay_ms": 1.0},
    }


ODD_TEXTS = [
    "nul \0 inside",
    "\u2028 \ufeff \U0010ffff",
    "émoji 🫀",
    "'; DROP TABLE log; --",
    '"\\u0000"',
    "\x1b[31m",
]


@pytest.mark.parametrize("odd", ODD_TEXTS)
async def test_any_text_is_stored_unchanged(store: SqlStore, odd: str) -> None:
    owner = await take_one(store)
    worker = WORKER._replace(
        last_error=odd,
        inactive_detail=odd,
        profile=profile(labels=((odd, odd),), current_job=odd, capabilities=(odd,)),
    )
    await owner.commit([About(described(odd), key())], workers={key(): worker})
    snapshot = await snapshot_of(store)
    assert snapshot.workers[key()] == worker
    assert snapshot.tail[-1].event == described(odd)


async def test_the_largest_numbers_are_stored_unchanged(store: SqlStore) -> None:
    owner = await take_one(store)
    worker = WORKER._replace(
        sequence=INT64_MAX,
        epoch=INT64_MAX,
        renewed_ms=INT64_MAX,
        deadline_ms=INT64_MAX,
        successes=INT64_MAX,
        errors=INT64_MAX,
        profile=profile(start_time_ns=INT64_MAX),
    )
    largest_renewals = [
        renewals(1).renewals[0]._replace(sequence=INT64_MAX, at_ms=INT64_MAX, successes=INT64_MAX)
    ]
    row = renewals(INT64_MAX)._replace(renewals=largest_renewals)
    owner.observed_ms = owner.wall_ms = INT64_MAX
    await owner.commit([About(described(), key()), About(row)], workers={key(): worker})
    snapshot = await snapshot_of(store)
    assert snapshot.workers[key()] == worker
    assert snapshot.observed_ms == INT64_MAX
    assert (snapshot.tail[-1].event, snapshot.tail[-1].wall_ms) == (row, INT64_MAX)
