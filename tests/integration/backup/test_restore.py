"""A restored database has one owner, forgets everything after the backup, and issues no token twice."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine

from liveness.clock import ManualClock
from liveness.engine import restore as restore_module
from liveness.engine.restore import RestoreFailed, RestoreSummary, begin_new_history, restore
from liveness.fencing import FencingGuard, StaleToken
from liveness.store.backup import create_backup
from liveness.store.errors import NotABackup, RestoreInterrupted, StoreInUse
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.store.timeline import TOKEN_FLOOR_MAX, TOKENS_SINCE_BACKUP_MAX, next_timeline
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.databases import PostgresServer
from tests.integration.backup.test_backup import files, no_progress
from tests.integration.server.activity_client import AVAILABLE, QUEUE, ActivityClient
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    NAMESPACE,
    RESURRECTED,
    SHARDS,
    ServerHarness,
    refusal,
)
from tests.integration.server.test_watch import Watcher


class Token(NamedTuple):
    attempt: int
    lease_epoch: int


def token(task: Any) -> Token:
    return Token(task.attempt, task.lease_epoch)


@pytest.fixture
async def backup(activity_client: ActivityClient, path: Path, tmp_path: Path) -> Path:
    target = tmp_path / "backup.db"
    await asyncio.to_thread(create_backup, path, target, no_progress)
    return target


async def restore_backup(harness: ServerHarness, backup: Path, path: Path) -> RestoreSummary:
    await harness.stop()
    _, restored = await asyncio.to_thread(restore, backup, path, harness.clock, no_progress, replace=True)
    await harness.start()
    return restored


async def test_a_restore_keeps_everything_but_ends_all_leases(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    await activity_client.schedule("forgotten")
    await activity_client.beat("new worker")
    restored = await restore_backup(harness, backup, path)
    assert restored[:2] == (1, 1)
    worker = await harness.describe("stays")
    assert (worker.state, worker.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_FORCED)
    assert worker.inactive_detail == "the database was restored from a backup"
    assert (await activity_client.state("photo")) == AVAILABLE
    assert (await refusal(activity_client.describe("forgotten"))).reason == "ACTIVITY_NOT_FOUND"
    assert (await refusal(harness.describe("newcomer"))).reason == "WORKER_NOT_FOUND"
    await harness.advance(1_000)
    [kept] = [
        task for task in await harness.tasks(admin_pb2.TASK_STATE_DONE) if task.worker_instance_key == "stays"
    ]
    assert kept.activity.workflow_id == "workflow-kept"


async def test_a_running_worker_is_resurrected_after_a_restore_and_told_its_lost_activities(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    await activity_client.beat("stays")
    restored = await restore_backup(harness, backup, path)
    result = await activity_client.beat("stays")
    assert (result.outcome, result.state) == (RESURRECTED, ACTIVE)
    assert result.lease_epoch == restored.token_floor
    assert [lost.workflow_id for lost in result.cancel_activities] == ["workflow-kept"]


async def test_a_restore_keeps_the_death_counts_of_the_backup(
    harness: ServerHarness, activity_client: ActivityClient, path: Path, tmp_path: Path
) -> None:
    await harness.beat("lost", lease_ms=10_000)
    await harness.advance(30_000)
    before = await harness.server.store.verdicts()
    assert before[NAMESPACE].deaths >= 1
    await harness.beat("lives", lease_ms=10_000)
    await asyncio.to_thread(create_backup, path, tmp_path / "backup.db", no_progress)
    await harness.advance(30_000)
    assert await harness.server.store.verdicts() != before
    assert (await restore_backup(harness, tmp_path / "backup.db", path)).workers >= 1
    assert await harness.server.store.verdicts() == before


async def test_a_fencing_guard_refuses_a_holder_from_after_the_backup(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    """Without a token floor both would hold attempt 1 in lease 1, and the guard could not distinguish them."""
    await activity_client.beat("former")
    before = await activity_client.take("former")
    assert token(before) == (1, 1)
    await restore_backup(harness, backup, path)
    await activity_client.beat("successor")
    after = await activity_client.take("successor")
    assert after.id == before.id
    guard, engine = FencingGuard(), create_engine("sqlite://")
    guard.create(engine)
    with engine.connect() as connection:
        with guard.writing(connection, "photo", token(after)):
            pass
        with pytest.raises(StaleToken), guard.writing(connection, "photo", token(before)):
            pass
    engine.dispose()
    assert (await refusal(activity_client.complete(before, "former"))).reason == "FENCED_OFF"


@pytest.mark.parametrize("way", ["scheduled anew", "claimed anew", "lost by a worker of the backup"])
async def test_every_attempt_after_a_restore_is_at_or_above_the_token_floor(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path, way: str
) -> None:
    restored = await restore_backup(harness, backup, path)
    await activity_client.beat("successor")
    if way == "scheduled anew":
        await activity_client.schedule("anew")
    elif way == "claimed anew":
        task = await activity_client.claim("anew", "successor", task_queue=QUEUE)
        assert token(task) == (restored.token_floor, restored.token_floor)
        return
    else:
        await harness.advance(1_000)
    tasks = await activity_client.poll("successor", max_activities=10)
    assert tasks
    assert all(min(token(task)) >= restored.token_floor for task in tasks)


async def test_restoring_the_same_backup_twice_issues_no_token_twice(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    given = []
    for passed_ms in (0, 60_000):
        await harness.stop()
        path.unlink()  # as after the loss of the disk: only the backup and the clock are left
        harness.clock.jump_wall(passed_ms)
        await restore_backup(harness, backup, path)
        await activity_client.beat("successor")
        given.append(token(await activity_client.take("successor")))
    assert given[1].attempt - given[0].attempt == given[1].lease_epoch - given[0].lease_epoch == 60


async def test_the_replaced_database_raises_the_token_floor_when_the_clock_went_back(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    first = await restore_backup(harness, backup, path)
    harness.clock.jump_wall(-86_400_000)
    second = await restore_backup(harness, backup, path)
    assert second.token_floor == first.token_floor + TOKENS_SINCE_BACKUP_MAX


def test_the_token_floor_rises_with_known_tokens_and_time_and_is_bounded() -> None:
    assert next_timeline(5, 0).token_floor == 5 + TOKENS_SINCE_BACKUP_MAX
    assert next_timeline(5, 1_800_000_000_000).token_floor == 1_800_000_000 - 1_577_836_800
    assert (
        next_timeline(2**40, 9_999_999_999_000).token_floor
        == TOKEN_FLOOR_MAX + TOKENS_SINCE_BACKUP_MAX
        < 2**31
    )
    assert next_timeline(5, 0).id != next_timeline(5, 0).id


async def test_resume_tokens_from_before_a_restore_are_refused(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path
) -> None:
    watcher = await Watcher(harness).open()
    old = watcher.token
    await harness.restart()
    await (await Watcher(harness).open()).open(resume_token=old)
    await restore_backup(harness, backup, path)
    for number in range(20):
        await activity_client.schedule(f"more-{number}")
    stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=old))
    assert (await refusal(stream.read())).reason == "RESUME_TOKEN_INVALID"
    new = (await Watcher(harness).open()).token
    await harness.restart()
    await Watcher(harness).open(resume_token=new)


async def test_a_restore_keeps_the_file_permissions_and_removes_the_old_wal(
    harness: ServerHarness, backup: Path, path: Path
) -> None:
    await harness.stop()
    path.chmod(0o640)
    path.with_name("liveness.db-wal").write_bytes(b"of a server that was killed")
    path.with_name("liveness.db-shm").write_bytes(b"the same")
    await asyncio.to_thread(restore, backup, path, harness.clock, no_progress, replace=True)
    assert path.stat().st_mode & 0o777 == 0o640
    assert {found.name for found in path.parent.iterdir()} == {"liveness.db", "liveness.db.lock"}
    await harness.start()


async def test_a_restore_needs_force_and_a_stopped_server(
    harness: ServerHarness, backup: Path, path: Path
) -> None:
    with pytest.raises(StoreInUse):
        await asyncio.to_thread(restore, backup, path, harness.clock, no_progress, replace=True)
    await harness.beat("served")
    await harness.stop()
    before = files(path.parent)
    with pytest.raises(RestoreFailed, match="use --force"):
        await asyncio.to_thread(restore, backup, path, harness.clock, no_progress)
    with pytest.raises(RestoreFailed, match="is the backup itself"):
        await asyncio.to_thread(restore, path, path, harness.clock, no_progress, replace=True)
    assert files(path.parent) == before


async def test_an_invalid_backup_replaces_nothing(harness: ServerHarness, backup: Path, path: Path) -> None:
    await harness.stop()
    before = files(path.parent)
    with closing(sqlite3.connect(backup)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("UPDATE log SET wall_ms = wall_ms + 1")
        connection.commit()
    with pytest.raises(NotABackup, match="does not match its checksum"):
        await asyncio.to_thread(restore, backup, path, harness.clock, no_progress, replace=True)
    assert files(path.parent) == before


class Killed(BaseException):
    """Stops all further work, as `kill -9` does."""


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before it is ready": lambda patch: patch.setattr(restore_module, "_copy_permissions", _die),
    "when the old WAL is gone": lambda patch: patch.setattr(
        restore_module, "SHARED_MEMORY", _KillingString()
    ),
    "before it is in place": lambda patch: patch.setattr(restore_module, "sync", _die),
}


def _die(*_: object) -> None:
    raise Killed


class _KillingString(str):
    __slots__ = ()

    def __radd__(self, other: str) -> str:
        raise Killed


@pytest.mark.parametrize("step", STEPS)
async def test_an_interrupted_restore_keeps_the_old_database_or_refuses_to_start(
    harness: ServerHarness, activity_client: ActivityClient, backup: Path, path: Path, step: str
) -> None:
    await activity_client.schedule("after the backup")
    await harness.stop()
    with pytest.MonkeyPatch.context() as patch:
        STEPS[step](patch)
        with pytest.raises(Killed):
            await asyncio.to_thread(restore, backup, path, harness.clock, no_progress, replace=True)
    if step == "before it is ready":
        await harness.start()
        assert await activity_client.state("after the backup") == AVAILABLE
        await harness.stop()
    else:
        with pytest.raises(RestoreInterrupted, match="run `liveness restore` again"):
            await harness.start()
    # Repeating the restore completes it.
    await restore_backup(harness, backup, path)
    assert await activity_client.state("photo") == AVAILABLE


async def test_a_restored_postgresql_database_starts_a_new_history(
    postgres: PostgresServer, postgres_database: str
) -> None:
    harness = await ServerHarness(postgres.url(postgres_database)).start()
    await ActivityClient(harness).beat("w")
    await harness.stop()
    store = SqlStore(PostgresDatabase(harness.url))
    await store.open(SHARDS, "tests")
    restored = await begin_new_history(store, SHARDS, ManualClock(), 0, no_progress)
    await store.close()
    assert restored.workers == 1
    await harness.start()
    assert (await ActivityClient(harness).beat("x")).lease_epoch == restored.token_floor
    await harness.stop()


async def test_a_backup_of_an_older_version_is_migrated(
    backup: Path, path: Path, harness: ServerHarness
) -> None:
    """The restore migrates the database before it is in place, instead of its first start."""
    await harness.stop()
    shutil.copyfile(backup, backup.with_name("older.db"))
    with closing(sqlite3.connect(backup.with_name("older.db"))) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        for table in (
            "nodes",
            "slots",
            "relays",
            "verdicts",
            "deaths",
            "silences",
            "objects",
            "deletions",
            "sizes",
            "tokens",
            "audit",
            "progress",
            "metric_samples",
            "metric_series",
        ):
            connection.execute(f"DROP TABLE {table}")
        for index in ("tasks_dead", "log_by_workflow"):
            connection.execute(f"DROP INDEX {index}")
        connection.execute("UPDATE alembic_version SET version_num = '0002'")
        connection.execute("DELETE FROM meta WHERE name = 'oldest_writer'")
        connection.commit()
    await restore_backup(harness, backup.with_name("older.db"), path)
    await harness.beat("w")


async def test_epochs_of_workers_that_were_forgotten_before_the_backup_stay_below_the_token_floor(
    harness: ServerHarness, path: Path, tmp_path: Path
) -> None:
    """They are not in the backup any more; only the floor of their shard is."""
    shard = harness.server.node.shard(NAMESPACE, "gone")
    shard.epoch_floor = 2_000_000_000  # as if it had been restarted that often
    await harness.beat("gone")
    await harness.expire("gone")
    await harness.forget("gone")
    await asyncio.to_thread(create_backup, path, tmp_path / "backup.db", no_progress)
    restored = await restore_backup(harness, tmp_path / "backup.db", path)
    assert restored.token_floor > 2**30
    assert (await harness.beat("gone")).lease_epoch > 2_000_000_000
