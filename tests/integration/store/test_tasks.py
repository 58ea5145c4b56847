"""The stored queue: due order, guarded updates, dead letters and pages."""

from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.worker import BoundActivity
from liveness.store.api import StoredTask, TaskRange, TaskState, TaskUpdate
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.samples import INT64_MAX, Owner, finished, reschedule, take, take_one


async def queue(store: SqlStore, *names: str) -> Owner:
    """A shard with one pending task per name; task ids start at 1."""
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule(name) for name in names])
    return owner


def retry(task_id: int, due_ms: int, attempts: int = 1, last_error: str = "no answer") -> TaskUpdate:
    return TaskUpdate(task_id, TaskState.RETRYING, due_ms, attempts, last_error)


def names(tasks: list[StoredTask]) -> list[str]:
    return [task.task.activity.activity_id for task in tasks]


async def test_a_new_task_is_stored_unchanged_and_due_at_once(store: SqlStore) -> None:
    owner = await take_one(store)
    task = ActivityRescheduleTask(
        "orders", BoundActivity("w", "r", "a", 3, "queue", b"\0\xff"), "worker", INT64_MAX
    )
    await owner.commit(new_tasks=[task])
    assert await store.due_tasks(0, now_ms=0, limit=10) == [
        StoredTask(
            task_id=1,
            shard_id=0,
            kind="ActivityRescheduleTask",
            state=TaskState.PENDING,
            due_ms=0,
            attempts=0,
            last_error="",
            task=task,
            created_wall_ms=owner.wall_ms,
            finished_wall_ms=None,
        )
    ]


async def test_a_task_stores_whether_the_worker_died(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(new_tasks=[reschedule("lost"), reschedule("unbound", died=False)])
    died = {task.task.activity.activity_id: task.task.died for task in await store.due_tasks(0, 0, 10)}
    assert died == {"lost": True, "unbound": False}
    assert all(type(value) is bool for value in died.values())


async def test_a_task_is_queued_on_the_shard_it_names(store: SqlStore) -> None:
    owner = await take_one(store, 0)
    draft = owner.draft(new_tasks=[reschedule()])
    draft.new_tasks = [draft.new_tasks[0]._replace(shard_ids=[3])]
    await store.commit([draft])
    assert await store.due_tasks(0, 0, 10) == []
    assert names(await store.due_tasks(3, 0, 10)) == ["charge"]


async def test_due_tasks_are_ordered_by_due_time_then_by_age(store: SqlStore) -> None:
    owner = await queue(store, "late", "early", "also late", "never tried", "not yet")
    await owner.commit(task_updates=[retry(1, 200), retry(2, 100), retry(3, 200), retry(5, 201)])
    assert names(await store.due_tasks(0, now_ms=200, limit=10)) == [
        "never tried",
        "early",
        "late",
        "also late",
    ]
    assert names(await store.due_tasks(0, now_ms=200, limit=2)) == ["never tried", "early"]


async def test_the_next_due_time_is_that_of_the_earliest_open_task(store: SqlStore) -> None:
    owner = await queue(store, "a", "b", "c")
    await owner.commit(task_updates=[retry(1, 300), retry(2, 200), finished(3)])
    assert await store.next_due_ms(0) == 200
    assert await store.next_due_ms(0, after_ms=199) == 200
    assert await store.next_due_ms(0, after_ms=200) == 300
    assert await store.next_due_ms(0, after_ms=300) is None
    await owner.commit(task_updates=[finished(1), finished(2)])
    assert await store.next_due_ms(0) is None


async def test_an_update_stores_all_its_fields(store: SqlStore) -> None:
    owner = await queue(store, "a", "b")
    await owner.commit(
        task_updates=[retry(1, due_ms=INT64_MAX, attempts=7, last_error="timed out"), finished(2)]
    )
    first, second = await store.get_task(1), await store.get_task(2)
    assert first is not None
    assert second is not None
    assert (first.state, first.due_ms, first.attempts, first.last_error, first.finished_wall_ms) == (
        TaskState.RETRYING,
        INT64_MAX,
        7,
        "timed out",
        None,
    )
    assert (second.state, second.finished_wall_ms) == (TaskState.DONE, owner.wall_ms)


async def test_an_unstorable_error_text_is_stored_with_replacements(store: SqlStore) -> None:
    """Error texts can contain anything. NUL and half of a surrogate pair, which no database stores, are
    replaced."""
    owner = await queue(store, "a")
    await owner.commit(task_updates=[retry(1, 0, last_error="é 🫀 nul \0 half \ud800 %s '; --")])
    [task] = await store.due_tasks(0, 0, 1)
    assert task.last_error == "é 🫀 nul \ufffd half \ufffd %s '; --"


async def test_finished_tasks_never_change(store_database: StoreDatabase, store: SqlStore) -> None:
    owner = await queue(store, "done", "discarded")
    await owner.commit(task_updates=[finished(1), finished(2, TaskState.DISCARDED)])
    before = (await store_database.dump())["tasks"]
    await owner.commit(task_updates=[retry(1, 50), TaskUpdate(2, TaskState.PENDING, 0, 0, "")])
    await owner.commit(task_updates=[finished(1, TaskState.DISCARDED), finished(2)])
    assert (await store_database.dump())["tasks"] == before


async def test_a_task_of_another_shard_cannot_be_updated(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    mine, other = await take(store, 0, 1)
    await other.commit(new_tasks=[reschedule()])
    before = (await store_database.dump())["tasks"]
    await mine.commit(task_updates=[finished(1)])
    assert (await store_database.dump())["tasks"] == before


async def test_a_dead_letter_is_listed_but_not_due_and_can_be_retried(store: SqlStore) -> None:
    owner = await queue(store, "poison", "fine")
    await owner.commit(task_updates=[TaskUpdate(1, TaskState.DEAD_LETTERED, 0, 20, "always fails")])
    assert names(await store.due_tasks(0, INT64_MAX, 10)) == ["fine"]
    [dead] = await store.list_tasks("orders", [TaskState.DEAD_LETTERED], after_id=0, limit=10)
    assert (dead.last_error, dead.attempts, dead.finished_wall_ms) == ("always fails", 20, None)
    await owner.commit(task_updates=[TaskUpdate(1, TaskState.PENDING, 0, 0, "")])
    assert names(await store.due_tasks(0, 0, 10)) == ["poison", "fine"]


async def test_tasks_are_listed_by_namespace_and_state_in_pages(store: SqlStore) -> None:
    owner = await take_one(store)
    spaces = ["orders", "other"] * 5
    await owner.commit(new_tasks=[reschedule(str(n), namespace=name) for n, name in enumerate(spaces, 1)])
    await owner.commit(task_updates=[finished(3), finished(4)])
    open_states = [TaskState.PENDING, TaskState.RETRYING]
    pages, after_id = [], 0
    while page := await store.list_tasks("orders", open_states, after_id, limit=2):
        pages.append([task.task_id for task in page])
        after_id = page[-1].task_id
    assert pages == [[1, 5], [7, 9]]
    assert [task.task_id for task in await store.list_tasks(None, [TaskState.DONE], 0, 10)] == [3, 4]


async def test_new_tasks_are_read_by_their_ids_over_shards(store: SqlStore) -> None:
    first, second, third = await take(store, 0, 1, 2)
    for number in range(3):
        for owner in (first, second, third):
            await owner.commit(new_tasks=[reschedule(f"{owner.shard_id}-{number}")])
    await first.commit(task_updates=[TaskUpdate(1, TaskState.DONE, 0, 1, "")])
    await second.commit(task_updates=[TaskUpdate(5, TaskState.RETRYING, 900, 1, "not now")])
    assert await store.new_task_range([0, 1]) == TaskRange(tasks=4, first_id=2, last_id=8)
    assert names(await store.new_tasks([0, 1], 2, 7)) == ["1-0", "0-1", "0-2"]
    assert names(await store.new_tasks([0, 1], 8, 100)) == ["1-2"]
    await third.commit(task_updates=[TaskUpdate(id, TaskState.DONE, 0, 1, "") for id in (3, 6, 9)])
    assert await store.new_task_range([2]) == TaskRange()


async def test_an_unknown_task_is_none(store: SqlStore) -> None:
    assert await store.get_task(1) is None


async def test_the_id_of_a_pruned_task_is_not_reused(store: SqlStore) -> None:
    owner = await queue(store, "first")
    await owner.commit(task_updates=[finished(1)])
    await store.prune_tasks(owner.owned, INT64_MAX)
    await owner.commit(new_tasks=[reschedule("second")])
    [task] = await store.due_tasks(0, 0, 10)
    assert task.task_id == 2


async def test_updates_that_exceed_one_statement_are_all_applied(store: SqlStore) -> None:
    owner = await queue(store, *(str(n) for n in range(700)))
    await owner.commit(task_updates=[retry(n, due_ms=n) for n in range(1, 701)])
    assert [task.due_ms for task in await store.due_tasks(0, INT64_MAX, 1_000)] == list(range(1, 701))
