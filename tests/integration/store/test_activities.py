"""Activities in the store: lookup by key, listing, deletion after retention, and recovery of unfinished ones."""

import sqlite3
from collections.abc import Iterable

import pytest
from sqlalchemy import Connection

from liveness.domain.activity import (
    FINISHED_ACTIVITY_STATES,
    Activity,
    ActivityState,
    EndedAttempt,
    ReleasedAttempt,
)
from liveness.domain.events import Retry
from liveness.domain.keys import ActivityId, ActivityKey
from liveness.store.api import ActivityFilter, ActivityRow
from liveness.store.bulk import LARGE_CHUNK_ROWS, find_rows
from liveness.store.retention import DELETE_BATCH
from liveness.store.schema import activities
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import INT64_MAX, activity, snapshot_of, take, take_one

STARTED, AVAILABLE, COMPLETED = ActivityState.STARTED, ActivityState.AVAILABLE, ActivityState.COMPLETED

FULL_ACTIVITY = activity(
    "wh\u00f6le \U0001f4e7",
    STARTED,
    worker="worker-7",
    epoch=INT64_MAX,
    attempt=INT64_MAX,
    task_queue="mails",
    token=b"\0\xff",
    releases=(ReleasedAttempt("worker-1", 3, 1),),
    input=b"\0input\xff",
    retry=Retry(5, 1.5, 70, 4, 0),
    since_ms=INT64_MAX,
    due_ms=INT64_MAX,
    failures=3,
    deaths=2,
    last_failure="nul \0 inside",
    result=b"\0\xff",
    end=EndedAttempt("worker-1", 3, 1, "ActivityAttemptFailed"),
)


async def write(
    store: SqlStore,
    activities: Iterable[tuple[ActivityKey, Activity]],
    shard_id: int = 0,
    wall_ms: int = 1_000,
) -> None:
    owner = await take_one(store, shard_id)
    owner.wall_ms = wall_ms
    await owner.commit(activities=dict(activities))


async def listed(store: SqlStore, namespace: str = "orders", **where: object) -> list[str]:
    rows = await store.list_activities(namespace, ActivityFilter(**where), None, 1_000)  # type: ignore[arg-type]
    return [row.key.activity_id for row in rows]


# -- by key


async def test_a_found_activity_has_all_its_fields(store: SqlStore) -> None:
    key, full_activity = FULL_ACTIVITY
    await write(store, [FULL_ACTIVITY])
    assert await store.find_activities([key]) == {key: full_activity}


async def test_a_lookup_returns_only_existing_activities(store: SqlStore) -> None:
    existing = [activity(name) for name in ("a", "b", "c")]
    await write(store, existing)
    keys = [key for key, _ in existing[:2]] + [activity("d")[0]]
    assert await store.find_activities(keys) == dict(existing[:2])
    assert await store.find_activities([]) == {}


async def test_a_lookup_compares_every_part_of_the_key(store: SqlStore) -> None:
    key, known = activity()
    await write(store, [(key, known)])
    for part in ("namespace", "workflow_id", "run_id", "activity_id"):
        assert await store.find_activities([key._replace(**{part: "other"})]) == {}


async def test_more_keys_than_fit_one_query_are_all_found(store: SqlStore) -> None:
    many = [activity(f"{number:04}") for number in range(2 * LARGE_CHUNK_ROWS + 1)]
    await write(store, many)
    assert await store.find_activities([key for key, _ in many]) == dict(many)


async def test_a_commit_replaces_the_whole_row_of_an_activity(store: SqlStore) -> None:
    key, _ = FULL_ACTIVITY
    await write(store, [FULL_ACTIVITY])
    plain = activity("x", COMPLETED, since_wall_ms=777)[1]._replace(id=key.id)
    await write(store, [(key, plain)])
    assert await store.find_activities([key]) == {key: plain}


async def test_only_finished_activities_have_a_finish_time(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    await write(store, [activity(state.name, state) for state in ActivityState], wall_ms=777)
    times = {row[3]: row[8] for row in (await store_database.dump())["activities"]}
    assert times == {
        state.name: 777 if state in FINISHED_ACTIVITY_STATES else None for state in ActivityState
    }


async def test_a_retried_activity_has_no_finish_time(store_database: StoreDatabase, store: SqlStore) -> None:
    await write(store, [activity("x", ActivityState.FAILED)])
    await write(store, [activity("x", AVAILABLE)])
    assert [row[8] for row in (await store_database.dump())["activities"]] == [None]


# -- lists


async def test_filters_are_combined(store: SqlStore) -> None:
    await write(
        store,
        [
            activity("1", AVAILABLE, task_queue="q"),
            activity("2", STARTED, task_queue="q"),
            activity("3", STARTED, task_queue="other"),
            activity("4", STARTED, task_queue="q", worker="worker-2"),
            activity("5", COMPLETED, task_queue="q"),
        ],
    )
    assert await listed(store) == ["1", "2", "3", "4", "5"]
    assert await listed(store, states=(STARTED,)) == ["2", "3", "4"]
    assert await listed(store, states=(AVAILABLE, COMPLETED)) == ["1", "5"]
    assert await listed(store, task_queue="q") == ["1", "2", "4", "5"]
    assert await listed(store, worker="worker-1") == ["2", "3"]
    assert await listed(store, worker="worker-1", task_queue="q", states=(STARTED,)) == ["2"]
    assert await listed(store, worker="worker-1", states=(AVAILABLE,)) == []


async def test_filters_compare_whole_values_byte_for_byte(store: SqlStore) -> None:
    names = ["queue", "Queue", "queue ", "que%", "é"]
    await write(store, [activity(name, STARTED, task_queue=name, worker=name) for name in names])
    for name in names:
        assert await listed(store, task_queue=name) == [name]
        assert await listed(store, worker=name) == [name]


async def test_a_list_contains_only_activities_of_its_namespace(store: SqlStore) -> None:
    spaces = ["orders", "orders2", "Orders", "order"]
    await write(store, [activity(space, namespace=space) for space in spaces])
    for space in spaces:
        assert await listed(store, space) == [space]
    assert await listed(store, "") == []


async def test_a_listed_activity_has_all_its_fields_and_its_shard(store: SqlStore) -> None:
    await write(store, [FULL_ACTIVITY], shard_id=2)
    assert await store.list_activities("orders", ActivityFilter(), None, 10) == [
        ActivityRow(*FULL_ACTIVITY, 2)
    ]


NAMES = ["A", "B", "_", "a", "a-b", "a_b", "aa", "b", "~", "é", "漢", "\ud7ff", "\ue000", "\uffff", "😀"]
# Keys are compared part by part: "a" with any rest sorts before "aa" with any rest.
KEYS = [
    ActivityKey("orders", workflow, run, name)
    for workflow, run in [("a", "z"), ("aa", "a"), ("a", "é"), ("😀", "\uffff"), ("\uffff", "😀")]
    for name in NAMES
]


def in_byte_order(keys: Iterable[ActivityKey]) -> list[ActivityKey]:
    return sorted(keys, key=lambda key: [part.encode() for part in key])


async def with_keys(store: SqlStore) -> None:
    _, known = activity()
    await write(store, [(key, known._replace(id=key.id)) for key in KEYS])


async def test_activities_are_listed_in_byte_order_of_their_key_parts(store: SqlStore) -> None:
    await with_keys(store)
    rows = await store.list_activities("orders", ActivityFilter(), None, 1_000)
    assert [row.key for row in rows] == in_byte_order(KEYS)


@pytest.mark.parametrize("size", [7, 20])
async def test_pages_of_any_size_contain_each_activity_once(store: SqlStore, size: int) -> None:
    await with_keys(store)
    seen: list[ActivityKey] = []
    after: ActivityId | None = None
    while page := await store.list_activities("orders", ActivityFilter(task_queue="queue"), after, size):
        assert len(page) <= size
        seen += [row.key for row in page]
        after = seen[-1].id
    assert seen == in_byte_order(KEYS)


async def test_a_page_can_start_after_a_key_that_does_not_exist(store: SqlStore) -> None:
    await with_keys(store)
    for after in [
        KEYS[0].id,
        KEYS[-1].id,
        ActivityId("a", "z", ""),
        ActivityId("b", "", ""),
        ActivityId("", "", ""),
    ]:
        [row] = await store.list_activities("orders", ActivityFilter(), after, 1)
        position = [part.encode() for part in after]
        later = [key for key in in_byte_order(KEYS) if [part.encode() for part in key.id] > position]
        assert row.key == later[0]


# -- retention


async def test_finished_activities_older_than_the_cutoff_of_their_namespace_are_deleted(
    store: SqlStore,
) -> None:
    owner = await take_one(store)
    spaces = ("short", "long", "for-ever", "default")
    for at_ms in (100, 200, 300):
        owner.wall_ms = at_ms
        done = [activity(str(at_ms), COMPLETED, namespace=space) for space in spaces]
        await owner.commit(activities=dict(done))
    cutoffs = {"short": 300, "long": 150, "for-ever": 0}
    assert await store.prune_activities(owner.owned, cutoffs, default_cutoff=200) == 2 + 1 + 0 + 1
    assert {space: await listed(store, space) for space in spaces} == {
        "short": ["300"],
        "long": ["200", "300"],
        "for-ever": ["100", "200", "300"],
        "default": ["200", "300"],
    }


async def test_namespaces_without_a_cutoff_use_the_default(store: SqlStore) -> None:
    owner = await take_one(store)
    owner.wall_ms = 100
    await owner.commit(
        activities=dict([activity("x", COMPLETED), activity("y", COMPLETED, namespace="other")])
    )
    assert await store.prune_activities(owner.owned, {}, default_cutoff=0) == 0
    assert await store.prune_activities(owner.owned, {}, default_cutoff=100) == 0
    assert await store.prune_activities(owner.owned, {}, default_cutoff=101) == 2


async def test_unfinished_activities_are_never_deleted(store: SqlStore) -> None:
    owner = await take_one(store)
    owner.wall_ms = 1
    await owner.commit(activities=dict(activity(state.name, state) for state in ActivityState))
    await store.prune_activities(owner.owned, {"orders": INT64_MAX}, default_cutoff=INT64_MAX)
    left = {state.name for state in ActivityState if state not in FINISHED_ACTIVITY_STATES}
    assert set(await listed(store)) == left


async def test_pruning_keeps_activities_of_other_shards(store: SqlStore) -> None:
    mine, other = await take(store, 0, 1)
    for owner in (mine, other):
        await owner.commit(activities=dict([activity(str(owner.shard_id), COMPLETED)]))
    assert await store.prune_activities(mine.owned, {}, default_cutoff=INT64_MAX) == 1
    assert await listed(store) == ["1"]


async def test_pruning_deletes_more_than_one_batch(store: SqlStore) -> None:
    owner = await take_one(store)
    count = DELETE_BATCH + 1
    await owner.commit(activities=dict(activity(str(number), COMPLETED) for number in range(count)))
    assert await store.prune_activities(owner.owned, {}, default_cutoff=INT64_MAX) == count
    assert await listed(store) == []


# -- take-over


async def test_a_take_over_reads_only_unfinished_activities(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    all_states = dict(activity(state.name, state) for state in ActivityState)
    await write(store, [*all_states.items(), FULL_ACTIVITY])
    snapshot = await snapshot_of(await store_database.open())
    unfinished = {
        key: known for key, known in all_states.items() if known.state not in FINISHED_ACTIVITY_STATES
    }
    assert snapshot.activities == {**unfinished, FULL_ACTIVITY[0]: FULL_ACTIVITY[1]}


async def test_finished_activities_can_be_looked_up_after_a_take_over(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    done = activity("x", COMPLETED, result=b"done", since_wall_ms=777)
    await write(store, [done])
    assert (await snapshot_of(await store_database.open())).activities == {}
    assert await store.find_activities([done[0]]) == dict([done])


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_lookup_by_keys_reads_no_other_activities(store: SqlStore) -> None:
    """SQLite reads the whole table for `(a, b) IN (VALUES …)`."""
    statements: list[str] = []

    def look_up(connection: Connection) -> list[str]:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(statements.append)
        list(find_rows(connection, activities, ActivityKey._fields, [("n", "w", "r", "a")] * 3))
        driver.set_trace_callback(None)
        return [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statements[-1]}")]

    plan = await store._database.read(look_up)
    assert any(step.startswith("SEARCH activities USING PRIMARY KEY") for step in plan), plan
    assert not any(step.startswith("SCAN activities") for step in plan), plan
