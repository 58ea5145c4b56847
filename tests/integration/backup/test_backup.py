"""Backups of a SQLite database: a complete and checked copy under its final name, or none."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from liveness.store import backup
from liveness.store.backup import BackupFailed, create_backup
from liveness.store.errors import NotABackup, RestoreInterrupted, StoreUnusable, WrittenByNewerVersion
from liveness.store.integrity import DatabaseSummary, check_database
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import SHARDS, ServerHarness


def no_progress(what: str, done: int, total: int) -> None:
    pass


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


@pytest.fixture
async def stopped_database(activity_client: ActivityClient, path: Path) -> Path:
    await activity_client.harness.stop()
    return path


@pytest.fixture
def copy(stopped_database: Path, tmp_path: Path) -> Path:
    create_backup(stopped_database, tmp_path / "copy.db", no_progress)
    return tmp_path / "copy.db"


async def test_a_backup_of_a_stopped_database_has_the_same_rows_and_does_not_change_it(
    stopped_database: Path, tmp_path: Path
) -> None:
    before = files(stopped_database.parent)
    contents = create_backup(stopped_database, tmp_path / "copy.db", no_progress)
    assert rows(tmp_path / "copy.db") == rows(stopped_database)
    assert contents == DatabaseSummary(
        bytes=(tmp_path / "copy.db").stat().st_size,
        revision=contents.revision,
        shards=SHARDS,
        log_entries=len(rows(stopped_database)["log"]),
        workers=2,
        activities=2,
        tasks=1,
    )
    assert files(stopped_database.parent) == before
    assert [found.name for found in tmp_path.iterdir() if found.is_file()] == ["copy.db"]


async def test_a_backup_of_a_served_database_is_a_snapshot_and_does_not_change_it(
    activity_client: ActivityClient, path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    before = _fingerprint(path)
    await asyncio.to_thread(create_backup, path, folder / "copy.db", no_progress)
    assert _fingerprint(path) == before
    await activity_client.schedule("after the backup")
    keys = [row[1] for row in rows(folder / "copy.db")["activities"]]
    assert "workflow-photo" in keys
    assert "workflow-after the backup" not in keys


def _fingerprint(path: Path) -> list[tuple[int, int]]:
    # Compared by time: reading the files here would release the locks of this process's server.
    found = [path.stat(), path.with_name("liveness.db-wal").stat()]
    return [(stat.st_size, stat.st_mtime_ns) for stat in found]


async def test_commits_during_a_backup_do_not_restart_the_copy(
    activity_client: ActivityClient, path: Path, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    progress: list[int] = []

    def commit_meanwhile(what: str, done: int, total: int) -> None:
        if what == "copying":
            progress.append(done)
            asyncio.run_coroutine_threadsafe(
                activity_client.schedule(f"during-{len(progress)}"), loop
            ).result(30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "PAGES_PER_STEP", 4)
        await asyncio.to_thread(create_backup, path, tmp_path / "copy.db", commit_meanwhile)
    assert len(progress) > 3
    assert progress == sorted(set(progress)), "the copy never restarted"
    keys = [row[1] for row in rows(tmp_path / "copy.db")["activities"]]
    assert not [key for key in keys if "during" in str(key)]


@pytest.mark.parametrize("name", ["copy.db", "node", "node/liveness.db"])
async def test_an_existing_file_is_not_overwritten(stopped_database: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    if name == "copy.db":
        target.write_text("precious")
    with pytest.raises(BackupFailed):
        create_backup(stopped_database, target, no_progress)
    if name == "copy.db":
        assert target.read_text() == "precious"
        create_backup(stopped_database, target, no_progress, replace=True)
        check_database(target, no_progress)
    else:
        with pytest.raises(BackupFailed):
            create_backup(stopped_database, target, no_progress, replace=True)


async def test_a_missing_or_partly_restored_database_is_not_copied(
    stopped_database: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnusable, match="does not exist"):
        create_backup(tmp_path / "no.db", tmp_path / "copy.db", no_progress)
    stopped_database.with_name("liveness.db.restoring").touch()
    with pytest.raises(RestoreInterrupted):
        create_backup(stopped_database, tmp_path / "copy.db", no_progress)
    assert not (tmp_path / "copy.db").exists()


async def test_leftovers_of_an_interrupted_backup_are_removed(stopped_database: Path, tmp_path: Path) -> None:
    for name in ("copy.db.unfinished", "copy.db.unfinished-journal", "copy.db.unfinished-wal"):
        (tmp_path / name).write_bytes(b"half of something" * 1_000)
    create_backup(stopped_database, tmp_path / "copy.db", no_progress)
    check_database(tmp_path / "copy.db", no_progress)
    assert [found.name for found in tmp_path.iterdir() if found.is_file()] == ["copy.db"]


async def test_concurrent_backups_to_one_file_are_refused(stopped_database: Path, tmp_path: Path) -> None:
    with (tmp_path / "copy.db.unfinished").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BackupFailed, match="is being written by another process"):
            create_backup(stopped_database, tmp_path / "copy.db", no_progress)
    create_backup(stopped_database, tmp_path / "copy.db", no_progress)


async def test_a_server_that_runs_during_the_backup_is_detected(
    harness: ServerHarness, activity_client: ActivityClient, path: Path, tmp_path: Path
) -> None:
    """A file without a WAL is read directly, which is correct only while no process writes to it."""
    await harness.stop()
    loop = asyncio.get_running_loop()
    visits = 0

    async def visit() -> None:
        await harness.start()
        await ActivityClient(harness).schedule("meanwhile")
        await harness.stop()

    def interfere(what: str, done: int, total: int) -> None:
        nonlocal visits
        if what == "copying" and not visits:
            visits = 1
            asyncio.run_coroutine_threadsafe(visit(), loop).result(60)

    await asyncio.to_thread(create_backup, path, tmp_path / "copy.db", interfere)
    assert visits
    assert rows(tmp_path / "copy.db") == rows(path)


# -- invalid backups


def _sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            for statement in statements:
                assert connection.execute(statement).rowcount, statement
            connection.commit()

    return change


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _overwrite_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 4_096)
        file.write(b"\xff" * 4_096)


DAMAGE = {
    "half of it": _truncate,
    "a page of rubbish": _overwrite_a_page,
    "no database": lambda path: path.write_text("Dear all") and None,
    "an empty file": lambda path: path.write_bytes(b"") and None,
    "a WAL beside it": lambda path: path.with_name(path.name + "-wal").write_bytes(b"") and None,
    "a changed event": _sql("UPDATE log SET payload = replace(payload, '5000', '6000') WHERE kind = 'ConfigChanged'"),
    "an event that is gone": _sql("DELETE FROM log WHERE kind = 'WorkerRegistered'", "DELETE FROM checkpoints"),
    "a last event that is gone": _sql(
        "DELETE FROM checkpoints", "DELETE FROM log WHERE id = (SELECT max(id) FROM log)"
    ),
    "a head that went back": _sql("UPDATE shards SET last_seq = last_seq - 1"),
    "a head that went on": _sql("UPDATE shards SET last_seq = last_seq + 1"),
    "a shard that is gone": _sql("DELETE FROM shards WHERE shard_id = 3"),
    "a worker of another shard": _sql("UPDATE workers SET shard_id = (shard_id + 1) % 8"),
    "a worker from the future": _sql("UPDATE workers SET as_of_seq = as_of_seq + 1000"),
    "a worker that cannot be read": _sql("UPDATE workers SET payload = '{'"),
    "an activity of another shard": _sql("UPDATE activities SET shard_id = (shard_id + 1) % 8"),
    "an activity that cannot be read": _sql("UPDATE activities SET payload = '{}'"),
    "a task that cannot be read": _sql("UPDATE tasks SET activity = '[]'"),
    "counts of a shard that there is not": _sql("INSERT INTO verdicts VALUES ('orders', 8, 1, 0)"),
    "a checkpoint that cannot be read": _sql("UPDATE checkpoints SET payload = '{}'"),
    "tables of another program": _sql("DROP TABLE alembic_version"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_or_altered_backup_is_refused(copy: Path, damage: str) -> None:
    check_database(copy, no_progress)
    DAMAGE[damage](copy)
    with pytest.raises(NotABackup, match="is not a complete backup"):
        check_database(copy, no_progress)


async def test_a_backup_of_a_newer_version_is_refused(copy: Path) -> None:
    _sql(
        "UPDATE alembic_version SET version_num = '9999'",
        "UPDATE meta SET value = '9999' WHERE name = 'oldest_writer'",
    )(copy)
    with pytest.raises(WrittenByNewerVersion, match="9999"):
        check_database(copy, no_progress)


async def test_a_damaged_database_is_not_backed_up(stopped_database: Path, tmp_path: Path) -> None:
    shutil.copyfile(stopped_database, tmp_path / "damaged.db")
    DAMAGE["an event that is gone"](tmp_path / "damaged.db")
    with pytest.raises(BackupFailed, match="itself is damaged: entries are missing"):
        create_backup(tmp_path / "damaged.db", tmp_path / "copy.db", no_progress)
    assert not (tmp_path / "copy.db").exists()
    assert not (tmp_path / "copy.db.unfinished").exists()
