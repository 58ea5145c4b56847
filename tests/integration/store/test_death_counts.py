"""Counts of deaths and of refuted deaths, which grow with the commits of each shard."""

import pytest

from liveness.domain.verdicts import VerdictCounts
from liveness.store.errors import CommitRejected, ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import INT64_MAX, take


async def test_a_new_store_has_no_deaths(store: SqlStore) -> None:
    assert await store.verdicts() == {}


async def test_counts_are_summed_over_commits_and_shards_by_namespace(store: SqlStore) -> None:
    first, second = await take(store, 0, 1)
    await first.commit(verdicts={"orders": VerdictCounts(2, 0), "billing": VerdictCounts(1, 1)})
    await first.commit(verdicts={"orders": VerdictCounts(0, 1)})
    await second.commit(verdicts={"orders": VerdictCounts(5, 2)})
    assert await store.verdicts() == {"orders": VerdictCounts(7, 3), "billing": VerdictCounts(1, 1)}


async def test_one_group_commit_can_count_in_many_shards_and_namespaces(store: SqlStore) -> None:
    owners = await take(store, 0, 1, 2)
    names = [f"namespace-{n}" for n in range(300)]
    for _ in range(2):
        drafts = [owner.draft(verdicts={name: VerdictCounts(1, 0) for name in names}) for owner in owners]
        await store.commit(drafts)
    assert await store.verdicts() == {name: VerdictCounts(6, 0) for name in names}


async def test_a_former_owner_cannot_change_the_counts(store: SqlStore) -> None:
    [old] = await take(store, 0)
    [new] = await take(store, 0)
    with pytest.raises(ShardsLost):
        await old.commit(verdicts={"orders": VerdictCounts(1, 0)})
    assert await store.verdicts() == {}
    await new.commit(verdicts={"orders": VerdictCounts(1, 0)})
    assert await store.verdicts() == {"orders": VerdictCounts(1, 0)}


async def test_refuted_deaths_may_exceed_counted_deaths(store: SqlStore) -> None:
    """A node of the previous version counts no deaths."""
    [owner] = await take(store, 0)
    await owner.commit(verdicts={"orders": VerdictCounts(0, 1)})
    assert await store.verdicts() == {"orders": VerdictCounts(0, 1)}


async def test_counts_survive_the_pruning_of_events(store_database: StoreDatabase, store: SqlStore) -> None:
    [owner] = await take(store, 0)
    await owner.commit(verdicts={"orders": VerdictCounts(INT64_MAX // 2, 7)}, checkpoint=[])
    await store.prune_events({0: owner.epoch}, {}, 2**62)
    assert await (await store_database.open()).verdicts() == {"orders": VerdictCounts(INT64_MAX // 2, 7)}


async def test_counts_below_zero_are_not_storable(store: SqlStore) -> None:
    [owner] = await take(store, 0)
    with pytest.raises(CommitRejected):
        await owner.commit(verdicts={"orders": VerdictCounts(-1, 0)})
