"""How far the log was published: cursors of owners only, forwards only; and what waits for a broker."""

from __future__ import annotations

import pytest

from liveness.store.api import PARKED_MS, RelayBacklog, TaskState, TaskUpdate, UnpublishedRetention
from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import About, described, finished, key, renewals, reschedule, take, take_one


def parked(task_id: int) -> TaskUpdate:
    return TaskUpdate(task_id, TaskState.RETRYING, PARKED_MS, 0, "the broker is unavailable")


async def test_a_cursor_is_where_it_was_left_and_never_moves_back(store: SqlStore) -> None:
    owner = await take_one(store)
    assert await store.relay_cursors("R", [0, 1]) == {}
    for seq, left_at in ((0, 0), (7, 7), (5, 7), (8, 8)):
        await store.advance_relay_cursors("R", owner.owned, {0: seq})
        assert await store.relay_cursors("R", [0, 1]) == {0: left_at}
    assert await store.relay_cursors("another", [0]) == {}


async def test_an_owner_that_was_replaced_moves_no_cursor(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    kept, lost = await take(store, 0, 1)
    await (await store_database.open()).take_over([1], "node-2", wall_ms=0)
    with pytest.raises(ShardsLost) as refused:
        await store.advance_relay_cursors("R", kept.owned | lost.owned, {0: 5, 1: 5})
    assert refused.value.shard_ids == {1}
    assert await store.relay_cursors("R", [0, 1]) == {}
    await store.advance_relay_cursors("R", kept.owned | lost.owned, {0: 5})
    assert await store.relay_cursors("R", [0, 1]) == {0: 5}


async def test_what_waits_is_counted_without_renewals(store: SqlStore) -> None:
    owner, other = await take(store, 0, 1)
    await store.advance_relay_cursors("R", owner.owned, {0: owner.head})
    await owner.commit(
        [About(described(), key()), About(renewals(1)), About(described(), key())],
        new_tasks=[reschedule("a"), reschedule("b"), reschedule("c")],
    )
    await owner.commit(task_updates=[parked(1), parked(2)])
    assert await store.relay_backlogs("R", [0, 1]) == {0: RelayBacklog(2, 1, 2), 1: RelayBacklog(0, 0, 0)}
    assert other.head == 1


async def test_parked_tasks_come_last_and_only_when_asked_for(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule(name) for name in ("waits", "now", "later")])
    later = TaskUpdate(3, TaskState.RETRYING, 500, 1, "")
    await owner.commit(task_updates=[parked(1), later])
    assert [task.task_id for task in await store.due_tasks(0, 100, 10)] == [2, 1]
    assert [task.task_id for task in await store.due_tasks(0, 100, 10, include_parked=False)] == [2]
    assert await store.next_due_ms(0, 100) == 500
    assert await store.next_due_ms(0, 500) is None


async def test_unpublished_events_outlast_their_retention_for_a_while(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=at) for at in (100, 200, 300, 400)], checkpoint=[])
    await store.advance_relay_cursors("R", owner.owned, {0: 3})  # of which 2 and 3 are events of 100 and 200

    async def left_after(kept_since: int) -> list[int]:
        await store.prune_events(owner.owned, {}, 400, UnpublishedRetention("R", kept_since))
        return [entry.wall_ms for entry in await store.read_log(0, 1, owner.head, 10)]

    assert await left_after(0) == [300, 400], "200 is published, 300 is old and waits"
    assert await left_after(301) == [400], "for so long and no longer"


async def test_a_relay_that_has_not_begun_holds_nothing_back(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=100)], checkpoint=[])
    assert await store.prune_events(owner.owned, {}, 200, UnpublishedRetention("R", 0)) >= 1
    assert await store.read_log(0, 1, owner.head, 10) == []


async def test_tasks_done_since_a_time_are_found_in_order(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule(name) for name in ("old", "new", "newest", "gone", "open")])
    owner.wall_ms = 1_000
    await owner.commit(task_updates=[finished(1)])
    owner.wall_ms = 2_000
    await owner.commit(task_updates=[finished(3), finished(2), finished(4, TaskState.DISCARDED)])

    async def found(**changes: object) -> list[int]:
        asked = {"shard_ids": [0], "since_wall_ms": 2_000, "namespace": None, "after_id": 0, "limit": 10}
        return [task.task_id for task in await store.finished_tasks(**(asked | changes))]  # type: ignore[arg-type]

    assert await found() == [2, 3]
    assert await found(since_wall_ms=0, limit=2) == [1, 2]
    assert await found(after_id=2) == [3]
    assert await found(shard_ids=[1]) == []
    assert await found(namespace="other") == []


async def test_the_first_event_since_a_time_is_not_a_renewal(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=5_000_000)])
    await owner.commit([About(renewals(1), wall_ms=6_000_000), About(described(), key(), wall_ms=6_000_000)])
    assert await store.first_seq_since(0, 5_000_000) == 2
    assert await store.first_seq_since(0, 5_000_001) == 4
    assert await store.first_seq_since(0, 6_000_001) is None
