"""Relay cursors, which only owners move and only forwards, and the backlog of a broker."""

from __future__ import annotations

import pytest

from liveness.store.api import PARKED_MS, RelayBacklog, TaskState, TaskUpdate, UnpublishedRetention
from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import About, described, finished, key, renewals, reschedule, take, take_one


def parked(task_id: int) -> TaskUpdate:
    return TaskUpdate(task_id, TaskState.RETRYING, PARKED_MS, 0, "the broker is unavailable")


async def test_a_cursor_keeps_its_position_and_never_moves_back(store: SqlStore) -> None:
    owner = await take_one(store)
    assert await store.relay_cursors("R", [0, 1]) == {}
    for seq, position in ((0, 0), (7, 7), (5, 7), (8, 8)):
        await store.advance_relay_cursors("R", owner.owned, {0: seq})
        assert await store.relay_cursors("R", [0, 1]) == {0: position}
    assert await store.relay_cursors("another", [0]) == {}


async def test_a_former_owner_cannot_move_a_cursor(store_database: StoreDatabase, store: SqlStore) -> None:
    kept, lost = await take(store, 0, 1)
    await (await store_database.open()).take_over([1], "node-2", wall_ms=0)
    with pytest.raises(ShardsLost) as refused:
        await store.advance_relay_cursors("R", kept.owned | lost.owned, {0: 5, 1: 5})
    assert refused.value.shard_ids == {1}
    assert await store.relay_cursors("R", [0, 1]) == {}
    await store.advance_relay_cursors("R", kept.owned | lost.owned, {0: 5})
    assert await store.relay_cursors("R", [0, 1]) == {0: 5}


async def test_the_backlog_is_counted_without_renewals(store: SqlStore) -> None:
    owner, other = await take(store, 0, 1)
    await store.advance_relay_cursors("R", owner.owned, {0: owner.head})
    await owner.commit(
        [About(described(), key()), About(renewals(1)), About(described(), key())],
        new_tasks=[reschedule("a"), reschedule("b"), reschedule("c")],
    )
    await owner.commit(task_updates=[parked(1), parked(2)])
    assert await store.relay_backlogs("R", [0, 1]) == {0: RelayBacklog(2, 1, 2), 1: RelayBacklog(0, 0, 0)}
    assert other.head == 1


async def test_parked_tasks_come_last_and_can_be_excluded(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule(name) for name in ("waits", "now", "later")])
    later = TaskUpdate(3, TaskState.RETRYING, 500, 1, "")
    await owner.commit(task_updates=[parked(1), later])
    assert [task.task_id for task in await store.due_tasks(0, 100, 10)] == [2, 1]
    assert [task.task_id for task in await store.due_tasks(0, 100, 10, include_parked=False)] == [2]
    assert await store.next_due_ms(0, 100) == 500
    assert await store.next_due_ms(0, 500) is None


async def test_unpublished_events_are_kept_beyond_their_retention_for_a_bounded_time(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(described(), key(), wall_ms=at) for at in (100, 200, 300, 400)], checkpoint=[])
    await store.advance_relay_cursors(
        "R", owner.owned, {0: 3}
    )  # sequences 2 and 3 are the events of 100 and 200

    async def left_after(kept_since: int) -> list[int]:
        await store.prune_events(owner.owned, {}, 400, UnpublishedRetention("R", kept_since))
        return [entry.wall_ms for entry in await store.read_log(0, 1, owner.head, 10)]

    assert await left_after(0) == [300, 400], (
        "200 is published; 300 is older than the retention but unpublished"
    )
    assert await left_after(301) == [400], "the extra time is over"


async def test_a_relay_without_a_cursor_does_not_keep_events(store: SqlStore) -> None:
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
        request = {"shard_ids": [0], "since_wall_ms": 2_000, "namespace": None, "after_id": 0, "limit": 10}
        return [task.task_id for task in await store.finished_tasks(**(request | changes))]  # type: ignore[arg-type]

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
