"""Rows that were changed outside the store or written by a newer version are never served."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from liveness.store import codec
from liveness.store.api import UNREADABLE, WorkerFilter
from liveness.store.codec import RenewalState
from liveness.store.errors import (
    CorruptRow,
    LogIncomplete,
    StoreError,
    WalDamaged,
    WrittenByNewerVersion,
)
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase, sqlite_store_database
from tests.unit.store.samples import (
    WORKER,
    About,
    activity,
    described,
    key,
    reschedule,
    snapshot_of,
    take_one,
)


async def with_one_event(store: SqlStore) -> int:
    """Commit one event about `key()` in shard 0 and return its sequence."""
    owner = await take_one(store)
    await owner.commit([About(described("balance 100"), key(), wall_ms=1_000_000)])
    return owner.head


DAMAGE = {
    "payload": "replace(payload, 'balance 100', 'balance 900')",
    "namespace": "'orderz'",
    "worker_key": "'worker-0'",
    "workflow_id": "'w'",
    "kind": "'WorkerForgotten'",
    "version": "2",
    "wall_ms": "1000001",
    "observed_ms": "observed_ms + 1",
    "checksum": "checksum + 1",
}


@pytest.mark.parametrize("column", DAMAGE)
async def test_a_take_over_detects_a_changed_column_of_the_log(
    store_database: StoreDatabase, store: SqlStore, column: str
) -> None:
    seq = await with_one_event(store)
    assert await store_database.execute(f"UPDATE log SET {column} = {DAMAGE[column]} WHERE seq = {seq}") == 1
    with pytest.raises(CorruptRow) as found:
        await snapshot_of(await store_database.open())
    assert str(found.value) == (
        f"The row at shard 0, sequence {seq} of table log does not match its checksum; "
        "restore the database from a backup."
    )


async def test_history_and_feed_refuse_a_damaged_event(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    seq = await with_one_event(store)
    await store_database.execute(f"UPDATE log SET payload = {DAMAGE['payload']} WHERE seq = {seq}")
    with pytest.raises(CorruptRow):
        await store.worker_history(key(), 0, newest_first=True, beyond_seq=None, limit=10)
    with pytest.raises(CorruptRow):
        await store.read_log(0, 0, seq, 10)


async def test_a_row_moved_to_another_position_is_detected(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    seq = await with_one_event(store)
    await store_database.execute(f"UPDATE log SET shard_id = 1, seq = {seq + 7} WHERE seq = {seq}")
    with pytest.raises(CorruptRow, match=f"shard 1, sequence {seq + 7}"):
        await store.read_log(1, 0, 99, 10)


async def test_a_failed_take_over_changes_nothing(store_database: StoreDatabase, store: SqlStore) -> None:
    seq = await with_one_event(store)
    await store_database.execute(f"UPDATE log SET checksum = 0 WHERE seq = {seq}")
    before = await store_database.dump()
    with pytest.raises(CorruptRow):
        await snapshot_of(await store_database.open())
    assert await store_database.dump() == before


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_a_flipped_bit_that_makes_invalid_text_is_detected(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    """Only for SQLite: PostgreSQL's pages have their own checksums."""
    seq = await with_one_event(store)

    def flip_top_bit(connection: Connection) -> None:
        row = connection.execute(text(f"SELECT CAST(payload AS BLOB) FROM log WHERE seq = {seq}"))
        payload = bytearray(row.scalar_one())
        payload[5] ^= 0x80
        statement = text("UPDATE log SET payload = CAST(:flipped AS TEXT) WHERE seq = :seq")
        connection.execute(statement, {"flipped": bytes(payload), "seq": seq})

    await store_database.run(flip_top_bit)
    with pytest.raises(StoreError):
        await snapshot_of(await store_database.open())
    with pytest.raises(StoreError):
        await store.read_log(0, 0, seq, 10)


# -- projections, queues and checkpoints


async def with_one_of_each(store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit(
        [About(described("before"), key())],
        workers={key(): WORKER},
        activities=dict([activity()]),
        new_tasks=[reschedule()],
        checkpoint=[RenewalState(1, 7, 0, 0, 0, False)],
    )


CHANGES = {
    "workers": (
        "state = 2",
        "number = number + 1",
        "payload = replace(payload, 'epoch', 'epocH')",
    ),
    "activities": ("task_queue = 'other'", "payload = replace(payload, 'resize', 'rotate')"),
    "checkpoints": ("seq = seq + 0, position = 0", "payload = replace(payload, '7', '8')"),
    "tasks": (
        "lease_epoch = 2",
        "worker_key = 'worker-2'",
        "activity = replace(activity, 'charge', 'refund')",
    ),
}


@pytest.mark.parametrize(
    ("table", "change"), [(table, change) for table in CHANGES for change in CHANGES[table]]
)
async def test_a_changed_row_of_a_projection_is_detected(
    store_database: StoreDatabase, store: SqlStore, table: str, change: str
) -> None:
    await with_one_of_each(store)
    assert await store_database.execute(f"UPDATE {table} SET {change}") == 1
    if table == "tasks":
        [task] = await store.due_tasks(0, 0, 10)
        assert "does not match its checksum" in task.damage
        assert task.task.activity == UNREADABLE
        return
    with pytest.raises(CorruptRow, match=f"of table {table} does not match"):
        await snapshot_of(await store_database.open())


async def test_a_changed_worker_is_not_listed(store_database: StoreDatabase, store: SqlStore) -> None:
    await with_one_of_each(store)
    await store_database.execute(f"UPDATE workers SET {CHANGES['workers'][-1]}")
    with pytest.raises(CorruptRow):
        await store.list_workers(key().namespace, WorkerFilter(), None, 10)


async def test_rows_without_checksums_of_an_older_version_are_read(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    await with_one_of_each(store)
    for table, column in (("workers", "payload"), ("activities", "payload"), ("checkpoints", "payload")):
        blanks = "' ' || char(9, 10, 13)" if store_database.dialect == "sqlite" else "E' \\t\\n\\r'"
        assert await store_database.execute(f"UPDATE {table} SET {column} = rtrim({column}, {blanks})") == 1
    snapshot = await snapshot_of(await store_database.open())
    assert snapshot.workers == {key(): WORKER._replace(sequence=7)}, "the row, and the checkpoint's renewal"


async def test_a_take_over_detects_missing_log_entries_after_the_checkpoint(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    owner = await take_one(store)
    for word in ("one", "two", "three"):
        await owner.commit([About(described(word), key())])
    await store_database.execute(f"DELETE FROM log WHERE shard_id = 0 AND seq = {owner.head - 1}")
    with pytest.raises(LogIncomplete, match="Entries between 0 and"):
        await snapshot_of(await store_database.open())


# -- the write-ahead log


async def copy_of_killed(store: SqlStore, folder: Path, commits: int = 3) -> Path:
    """Copy the database as it is when its process is killed; return the write-ahead log."""
    owner = await take_one(store)
    for number in range(commits):
        await owner.commit([About(described(str(number)), key())])
    killed = folder / "killed"
    killed.mkdir()
    for ending in ("", "-wal"):
        shutil.copy(folder / f"liveness.db{ending}", killed)
    return killed / "liveness.db-wal"


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
@pytest.mark.parametrize("at", [12, 20, 40, 200])
async def test_damage_that_would_lose_durable_commits_is_detected(
    store: SqlStore, tmp_path: Path, at: int
) -> None:
    """Damage in the header of the write-ahead log, in that of its first frame, and in the page."""
    log = await copy_of_killed(store, tmp_path)
    data = bytearray(log.read_bytes())
    data[at] ^= 1
    log.write_bytes(data)
    store_database = sqlite_store_database(log.parent)
    with pytest.raises(WalDamaged, match="-wal is damaged"):
        await store_database.open()
    await store_database.close()


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_a_torn_last_commit_is_not_damage(store: SqlStore, tmp_path: Path) -> None:
    log = await copy_of_killed(store, tmp_path)
    data = bytearray(log.read_bytes())
    data[-100] ^= 1
    log.write_bytes(data)
    store_database = sqlite_store_database(log.parent)
    assert len(await (await store_database.open()).read_log(0, 0, 99, 10)) == 3
    await store_database.close()


@dataclass(frozen=True)
class WorkerPromoted:
    """A kind of event that this version does not know."""

    rank: int


async def test_an_event_of_an_unknown_kind_is_refused(store_database: StoreDatabase, store: SqlStore) -> None:
    owner = await take_one(store)
    await owner.commit([About(WorkerPromoted(rank=3), key())])  # type: ignore[arg-type]
    with pytest.raises(WrittenByNewerVersion) as refused:
        await snapshot_of(await store_database.open())
    assert str(refused.value) == (
        "The database holds an event WorkerPromoted of version 1, which this version does not know; "
        "start the version that wrote it, or a newer one."
    )


async def test_an_event_of_a_newer_version_is_refused(
    store_database: StoreDatabase, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as future:
        future.setattr(codec, "VERSION", codec.VERSION + 1)
        await with_one_event(store)
    with pytest.raises(WrittenByNewerVersion, match="an event WorkerDescribed of version 2"):
        await store.worker_history(key(), 0, newest_first=True, beyond_seq=None, limit=10)
