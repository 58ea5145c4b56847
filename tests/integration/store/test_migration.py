"""A database of an earlier version is migrated to today's tables without losing or changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from liveness.domain.activity import ActivityState
from liveness.domain.events import LeaseRenewed
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.worker import NO_STANDING
from liveness.store import migrate
from liveness.store.api import ActivityFilter, TaskState, WorkerFilter
from liveness.store.codec import RenewalBatch
from liveness.store.database_identity import IDENTITY, WAL_TIMELINE
from tests.databases import StoreDatabase
from tests.unit.store import golden_v1
from tests.unit.store.golden_files import SHARD, VERSIONS
from tests.unit.store.samples import activity, finished, reschedule, snapshot_of, take_one

FROZEN = Path(migrate.__file__).parent / "migrations" / "versions"
SHARDS = 8
V1 = VERSIONS[0]
BINDING = V1.forms()["bound_activity"]

LOST = ActivityRescheduleTask("orders", golden_v1.CHARGE, "worker-1", 2, died=True)
MAIL_KEY = ActivityKey("orders", *golden_v1.MOVED_MAIL.id)


def create(connection: Connection) -> None:
    """Create the empty tables of revision 0001."""
    for statement in (FROZEN / f"0001.{connection.dialect.name}.sql").read_text().split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    _insert(connection, "alembic_version", version_num="0001")


def fill(connection: Connection) -> None:
    """Write the golden log and its projections as a server of that version did."""
    create(connection)
    _insert(connection, "meta", name="shard_count", value=str(SHARDS))
    _insert(connection, "meta", name="created_by", value="liveness 0.1.0")
    rows = V1.rows()
    for shard_id in range(SHARDS):
        head: dict[str, Any] = {"epoch": 0, "last_seq": 0, "observed_ms": 0, "takeovers": "[]", "owner": ""}
        if shard_id == SHARD:
            head = {
                "epoch": 1,
                "last_seq": rows[-1].seq,
                "observed_ms": 14_000,
                "takeovers": "[0]",
                "owner": "node-1",
            }
        _insert(connection, "shards", shard_id=shard_id, **head)
    for row in rows:
        _insert(connection, "log", **row._asdict())
    forms = V1.forms()
    _insert(connection, "checkpoints", shard_id=SHARD, seq=21, position=21, payload=forms["pulses"])
    _insert(connection, "config", namespace="orders", shard_id=SHARD, payload=forms["settings"])
    columns = {"namespace": "orders", "shard_id": SHARD, "task_queue": "", "build_id": "", "host_name": ""}
    for key, number, state, form in [("worker-1", 3, 1, "worker"), ("worker-2", 4, 3, "tombstone")]:
        identity = {"worker_key": key, "number": number, "as_of_seq": 21, "state": state}
        _insert(connection, "workers", **columns, **identity, payload=forms[form])
    for name, state in [("e-mail 📧", 3), ("cancel requested", 1), ("released", 2)]:
        ids = {"workflow_id": "bestellung-ü", "run_id": "läuft", "activity_id": name}
        identity = {"namespace": "orders", "shard_id": SHARD, "state": state, "task_queue": "mails"}
        _insert(connection, "activities", **ids, **identity, payload=forms["activity"])
    _fill_tasks(connection)


def _fill_tasks(connection: Connection) -> None:
    """Insert a task in each state; the two newest, with the highest ids, are deleted already."""
    for state in [*TaskState, TaskState.DONE, TaskState.DONE]:
        _insert(
            connection, "tasks", shard_id=SHARD, kind="ActivityRescheduleTask", state=int(state), due_ms=70 + state,
            attempts=2, last_error="no answer", namespace="orders", worker_key="worker-1", lease_epoch=2,
            activity=BINDING, created_wall_ms=1_000, finished_wall_ms=2_000 if state >= TaskState.DONE else None,
        )  # fmt: skip
    connection.execute(text("DELETE FROM tasks WHERE task_id > 5"))


def _insert(connection: Connection, table: str, **values: Any) -> None:
    names = ", ".join(values)
    given = ", ".join(f":{name}" for name in values)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({given})"), values)


@pytest.fixture
async def old(store_database: StoreDatabase) -> StoreDatabase:
    await store_database.run(fill)
    return store_database


async def rows_of(store_database: StoreDatabase, table: str, columns: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = await store_database.run(
        lambda connection: [
            tuple(row)
            for row in connection.execute(text(f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3, 4"))
        ]
    )
    return rows


async def test_a_migration_keeps_every_row_unchanged(old: StoreDatabase) -> None:
    kept = {
        "shards": "shard_id, last_seq, observed_ms, takeovers, owner",
        "log": "id, shard_id, seq, kind, version, namespace, worker_key, workflow_id, wall_ms, observed_ms, payload, checksum",
        "checkpoints": "shard_id, seq, position, payload",
        "config": "namespace, shard_id, payload, namespace",
        "workers": "namespace, worker_key, shard_id, number, as_of_seq, state, task_queue, build_id, host_name, payload",
        "activities": "namespace, workflow_id, run_id, activity_id, shard_id, state, task_queue, payload",
        "tasks": "task_id, shard_id, kind, state, due_ms, attempts, last_error, namespace, worker_key, lease_epoch, "
        "activity, created_wall_ms, finished_wall_ms",
    }
    before = {table: await rows_of(old, table, columns) for table, columns in kept.items()}
    await old.open(SHARDS)
    after = {table: await rows_of(old, table, columns) for table, columns in kept.items()}
    assert after == before
    assert all(before.values()), "every table had rows"
    meta = {row[:2] for row in await rows_of(old, "meta", "name, value, 1, 1")}
    assert {row for row in meta if row[0] not in (IDENTITY, WAL_TIMELINE)} == {
        ("created_by", "liveness 0.1.0"),
        ("shard_count", "8"),
        ("oldest_writer", "0003"),
    }
    assert await rows_of(old, "alembic_version", "version_num, 1, 1, 1") == [
        (migrate.Revisions().head, 1, 1, 1)
    ]
    new = await rows_of(old, "activities", "state, worker_key, finished_wall_ms, 1")
    assert new == [(1, "", None, 1), (2, "", None, 1), (3, "", None, 1)], "without a holder, and not finished"


async def test_a_migrated_shard_is_taken_over_completely(old: StoreDatabase) -> None:
    store = await old.open(SHARDS)
    snapshot = await snapshot_of(store, SHARD)
    # Raised once by the migration, which excludes older writers, and once by the take-over.
    assert (snapshot.epoch, snapshot.observed_ms, snapshot.takeovers) == (3, 14_000, (0, 14_000))
    assert snapshot.checkpoint_seq == 21
    assert [entry.event for entry in snapshot.tail] == [RenewalBatch([3], [LeaseRenewed(10, 14_000, 8, 3)])]
    assert snapshot.workers == {
        WorkerKey("orders", "worker-1"): V1.stored_workers["worker"],
        WorkerKey("orders", "worker-2"): V1.stored_workers["tombstone"],
    }
    assert all(worker.standing is NO_STANDING for worker in snapshot.workers.values())
    assert snapshot.activities[MAIL_KEY] == V1.stored_activities["activity"]
    assert len(snapshot.activities) == 3


async def test_migrated_rows_can_be_looked_up_and_listed(old: StoreDatabase) -> None:
    store = await old.open(SHARDS)
    assert await store.find_activities([MAIL_KEY]) == {MAIL_KEY: V1.stored_activities["activity"]}
    listed = await store.list_activities(
        "orders", ActivityFilter(states=(ActivityState.AVAILABLE,)), None, 10
    )
    assert [row.key for row in listed] == [MAIL_KEY]
    assert len(await store.list_workers("orders", WorkerFilter(), None, 10)) == 2
    assert await store.load_config() == {"orders": golden_v1.SETTINGS}
    log = await store.read_log(SHARD, 0, 22, 100)
    assert log == [entry for entry in V1.meaning if not isinstance(entry.event, RenewalBatch)]


async def test_pending_reschedules_survive_the_migration_as_deaths(
    old: StoreDatabase,
) -> None:
    store = await old.open(SHARDS)
    tasks = await store.list_tasks("orders", list(TaskState), 0, 10)
    assert [(task.task_id, task.state, task.due_ms, task.attempts) for task in tasks] == [
        (int(state), state, 70 + state, 2) for state in TaskState
    ]
    assert all(task.task == LOST for task in tasks)
    assert [task.task_id for task in await store.due_tasks(SHARD, 100, 10)] == [1, 2]


@pytest.mark.parametrize("emptied", [False, True])
async def test_no_new_task_gets_an_id_that_was_used_before(
    store_database: StoreDatabase, *, emptied: bool
) -> None:
    """Not even the id of a task that was pruned before the migration: a client may still ask for it."""

    def prepare(connection: Connection) -> None:
        fill(connection)
        if emptied:
            connection.execute(text("DELETE FROM tasks"))

    await store_database.run(prepare)
    owner = await take_one(await store_database.open(SHARDS), SHARD)
    await owner.commit(new_tasks=[reschedule("new")])
    assert [row[0] for row in await rows_of(store_database, "tasks", "task_id, 1, 1, 1")][-1] == 8


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_each_table_has_one_id_counter(old: StoreDatabase) -> None:
    """With two counters for one table it would be random which one is read."""
    await old.open(SHARDS)
    counters = await rows_of(old, "sqlite_sequence", "name, seq, 1, 1")
    assert counters == [("log", len(V1.rows()), 1, 1), ("tasks", 7, 1, 1)]


async def test_a_migrated_store_without_tasks_starts_with_id_one(store_database: StoreDatabase) -> None:
    await store_database.run(create)
    owner = await take_one(await store_database.open(SHARDS), SHARD)
    await owner.commit(new_tasks=[reschedule("new")])
    assert [row[0] for row in await rows_of(store_database, "tasks", "task_id, 1, 1, 1")] == [1]


async def test_migrated_tables_accept_new_kinds_of_rows(old: StoreDatabase) -> None:
    store = await old.open(SHARDS)
    owner = await take_one(store, SHARD)
    held = activity("held", ActivityState.STARTED)
    moved = golden_v1.MOVED_MAIL._replace(state=ActivityState.COMPLETED)
    await owner.commit(
        activities={MAIL_KEY: moved, held[0]: held[1]},
        new_tasks=[reschedule("let go of", died=False)],
        task_updates=[finished(1)],
    )
    snapshot = await snapshot_of(await old.open(SHARDS), SHARD)
    assert MAIL_KEY not in snapshot.activities
    assert snapshot.activities[held[0]] == held[1]
    assert await store.find_activities([MAIL_KEY]) == {MAIL_KEY: moved}
    assert [task.task.died for task in await store.due_tasks(SHARD, 100, 10)] == [False, True]


async def test_a_failed_migration_changes_nothing(old: StoreDatabase) -> None:
    """An obstacle to the last step leaves the tables unchanged."""
    await old.execute("CREATE TABLE in_the_way (x INTEGER)")
    await old.execute("CREATE INDEX activities_finished ON in_the_way (x)")
    before = await rows_of(old, "tasks", "task_id, shard_id, state, activity")
    with pytest.raises(Exception, match="already exists"):
        await old.open(SHARDS)
    assert await rows_of(old, "tasks", "task_id, shard_id, state, activity") == before
    assert await rows_of(old, "alembic_version", "version_num, 1, 1, 1") == [("0001", 1, 1, 1)]
    await old.execute("DROP TABLE in_the_way")
    await old.open(SHARDS)
