"""A restored database is served by nobody else, forgets what came after the backup, and gives no token out twice."""

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

from liveness import restoring
from liveness.clock import ManualClock
from liveness.fencing import FencingGuard, StaleToken
from liveness.restoring import Restored, RestoreFailed, begin_new_history, restore
from liveness.store.backup import back_up
from liveness.store.errors import NotABackup, RestoreInterrupted, StoreInUse
from liveness.store.history import FLOOR_MAX, GIVEN_SINCE_MAX, following
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.databases import PostgresServer
from tests.operations.test_backup import files, quietly
from tests.server.site import ACTIVE, INACTIVE, NAMESPACE, RESURRECTED, SHARDS, Site, refusal
from tests.server.test_watch import Watcher
from tests.server.work import AVAILABLE, QUEUE, Work


class Token(NamedTuple):
    attempt: int
    lease_epoch: int


def token(task: Any) -> Token:
    return Token(task.attempt, task.lease_epoch)


@pytest.fixture
async def backup(work: Work, path: Path, tmp_path: Path) -> Path:
    target = tmp_path / "backup.db"
    await asyncio.to_thread(back_up, path, target, quietly)
    return target


async def put_back(site: Site, backup: Path, path: Path) -> Restored:
    await site.stop()
    _, restored = await asyncio.to_thread(restore, backup, path, site.clock, quietly, replace=True)
    await site.start()
    return restored


async def test_everything_is_as_it_was_but_that_all_leases_are_over(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    await work.schedule("forgotten")
    await work.beat("newcomer")
    restored = await put_back(site, backup, path)
    assert restored[:2] == (1, 1)
    worker = await site.describe("stays")
    assert (worker.state, worker.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_FORCED)
    assert worker.inactive_detail == "the database was restored from a backup"
    assert (await work.state("photo")) == AVAILABLE
    assert (await refusal(work.describe("forgotten"))).reason == "ACTIVITY_NOT_FOUND"
    assert (await refusal(site.describe("newcomer"))).reason == "WORKER_NOT_FOUND"
    await site.advance(1_000)
    [kept] = [
        task for task in await site.tasks(admin_pb2.TASK_STATE_DONE) if task.worker_instance_key == "stays"
    ]
    assert kept.activity.workflow_id == "workflow-kept"


async def test_a_worker_that_still_runs_comes_back_and_is_told_what_it_lost(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    await work.beat("stays")
    restored = await put_back(site, backup, path)
    result = await work.beat("stays")
    assert (result.outcome, result.state) == (RESURRECTED, ACTIVE)
    assert result.lease_epoch == restored.token_floor
    assert [lost.workflow_id for lost in result.cancel_activities] == ["workflow-kept"]


async def test_deaths_are_counted_as_of_the_backup_and_leases_that_restoring_ends_are_none(
    site: Site, work: Work, path: Path, tmp_path: Path
) -> None:
    await site.beat("lost", lease_ms=10_000)
    await site.advance(30_000)
    before = await site.server.store.verdicts()
    assert before[NAMESPACE].deaths >= 1
    await site.beat("lives", lease_ms=10_000)
    await asyncio.to_thread(back_up, path, tmp_path / "backup.db", quietly)
    await site.advance(30_000)
    assert await site.server.store.verdicts() != before
    assert (await put_back(site, tmp_path / "backup.db", path)).workers >= 1
    assert await site.server.store.verdicts() == before


async def test_data_refuses_whoever_was_handed_the_work_after_the_backup(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    """Without a floor both would hold attempt 1 in lease 1, and the guard could not tell them apart."""
    await work.beat("zombie")
    before = await work.take("zombie")
    assert token(before) == (1, 1)
    await put_back(site, backup, path)
    await work.beat("heir")
    after = await work.take("heir")
    assert after.id == before.id
    guard, engine = FencingGuard(), create_engine("sqlite://")
    guard.create(engine)
    with engine.connect() as connection:
        with guard.writing(connection, "photo", token(after)):
            pass
        with pytest.raises(StaleToken), guard.writing(connection, "photo", token(before)):
            pass
    engine.dispose()
    assert (await refusal(work.complete(before, "zombie"))).reason == "FENCED_OFF"


@pytest.mark.parametrize("way", ["scheduled anew", "claimed anew", "lost by a worker of the backup"])
async def test_no_way_to_an_attempt_leads_below_the_floor(
    site: Site, work: Work, backup: Path, path: Path, way: str
) -> None:
    restored = await put_back(site, backup, path)
    await work.beat("heir")
    if way == "scheduled anew":
        await work.schedule("anew")
    elif way == "claimed anew":
        task = await work.claim("anew", "heir", task_queue=QUEUE)
        assert token(task) == (restored.token_floor, restored.token_floor)
        return
    else:
        await site.advance(1_000)
    tasks = await work.poll("heir", max_activities=10)
    assert tasks
    assert all(min(token(task)) >= restored.token_floor for task in tasks)


async def test_the_same_backup_restored_twice_gives_no_token_twice(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    given = []
    for passed_ms in (0, 60_000):
        await site.stop()
        path.unlink()  # as on a disk that is lost: nothing but the backup and the clock can tell
        site.clock.jump_wall(passed_ms)
        await put_back(site, backup, path)
        await work.beat("heir")
        given.append(token(await work.take("heir")))
    assert given[1].attempt - given[0].attempt == given[1].lease_epoch - given[0].lease_epoch == 60


async def test_a_clock_that_went_back_is_outvoted_by_the_database_that_is_replaced(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    first = await put_back(site, backup, path)
    site.clock.jump_wall(-86_400_000)
    second = await put_back(site, backup, path)
    assert second.token_floor == first.token_floor + GIVEN_SINCE_MAX


def test_floors_rise_with_what_is_known_and_with_time_and_leave_room_for_attempts() -> None:
    assert following(5, 0).token_floor == 5 + GIVEN_SINCE_MAX
    assert following(5, 1_800_000_000_000).token_floor == 1_800_000_000 - 1_577_836_800
    assert following(2**40, 9_999_999_999_000).token_floor == FLOOR_MAX + GIVEN_SINCE_MAX < 2**31
    assert following(5, 0).id != following(5, 0).id


async def test_a_watcher_from_before_is_refused_even_when_the_log_has_grown_past_its_place(
    site: Site, work: Work, backup: Path, path: Path
) -> None:
    watcher = await Watcher(site).open()
    old = watcher.token
    await site.restart()
    await (await Watcher(site).open()).open(resume_token=old)
    await put_back(site, backup, path)
    for number in range(20):
        await work.schedule(f"more-{number}")
    stream = site.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=old))
    assert (await refusal(stream.read())).reason == "RESUME_TOKEN_INVALID"
    new = (await Watcher(site).open()).token
    await site.restart()
    await Watcher(site).open(resume_token=new)


async def test_the_replaced_database_lends_its_rights_and_leaves_no_wal(
    site: Site, backup: Path, path: Path
) -> None:
    await site.stop()
    path.chmod(0o640)
    path.with_name("liveness.db-wal").write_bytes(b"of a server that was killed")
    path.with_name("liveness.db-shm").write_bytes(b"the same")
    await asyncio.to_thread(restore, backup, path, site.clock, quietly, replace=True)
    assert path.stat().st_mode & 0o777 == 0o640
    assert {found.name for found in path.parent.iterdir()} == {"liveness.db", "liveness.db.lock"}
    await site.start()


async def test_a_database_is_not_replaced_without_being_asked_nor_while_it_is_served(
    site: Site, backup: Path, path: Path
) -> None:
    with pytest.raises(StoreInUse):
        await asyncio.to_thread(restore, backup, path, site.clock, quietly, replace=True)
    await site.beat("served")
    await site.stop()
    before = files(path.parent)
    with pytest.raises(RestoreFailed, match="say --force"):
        await asyncio.to_thread(restore, backup, path, site.clock, quietly)
    with pytest.raises(RestoreFailed, match="is the backup itself"):
        await asyncio.to_thread(restore, path, path, site.clock, quietly, replace=True)
    assert files(path.parent) == before


async def test_a_backup_that_is_not_whole_replaces_nothing(site: Site, backup: Path, path: Path) -> None:
    await site.stop()
    before = files(path.parent)
    with closing(sqlite3.connect(backup)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("UPDATE log SET wall_ms = wall_ms + 1")
        connection.commit()
    with pytest.raises(NotABackup, match="does not match its checksum"):
        await asyncio.to_thread(restore, backup, path, site.clock, quietly, replace=True)
    assert files(path.parent) == before


class Killed(BaseException):
    """Nothing that follows is done, as after `kill -9`."""


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before it is ready": lambda patch: patch.setattr(restoring, "_own_like", _die),
    "when the old WAL is gone": lambda patch: patch.setattr(restoring, "SHARED_MEMORY", _Deadly()),
    "before it is in place": lambda patch: patch.setattr(restoring, "sync", _die),
}


def _die(*_: object) -> None:
    raise Killed


class _Deadly(str):
    __slots__ = ()

    def __radd__(self, other: str) -> str:
        raise Killed


@pytest.mark.parametrize("step", STEPS)
async def test_an_interrupted_restore_leaves_the_old_database_or_a_server_that_says_what_to_do(
    site: Site, work: Work, backup: Path, path: Path, step: str
) -> None:
    await work.schedule("after the backup")
    await site.stop()
    with pytest.MonkeyPatch.context() as patch:
        STEPS[step](patch)
        with pytest.raises(Killed):
            await asyncio.to_thread(restore, backup, path, site.clock, quietly, replace=True)
    if step == "before it is ready":
        await site.start()
        assert await work.state("after the backup") == AVAILABLE
        await site.stop()
    else:
        with pytest.raises(RestoreInterrupted, match="run `liveness restore` again"):
            await site.start()
    # Said again, it does it all.
    await put_back(site, backup, path)
    assert await work.state("photo") == AVAILABLE


async def test_a_postgresql_that_was_put_back_by_its_own_means_begins_a_new_history_too(
    postgres: PostgresServer, postgres_database: str
) -> None:
    site = await Site(postgres.url(postgres_database)).start()
    await Work(site).beat("w")
    await site.stop()
    store = SqlStore(PostgresDatabase(site.url))
    await store.open(SHARDS, "tests")
    restored = await begin_new_history(store, SHARDS, ManualClock(), 0, quietly)
    await store.close()
    assert restored.workers == 1
    await site.start()
    assert (await Work(site).beat("x")).lease_epoch == restored.token_floor
    await site.stop()


async def test_a_backup_of_an_older_version_is_brought_up_to_date(
    backup: Path, path: Path, site: Site
) -> None:
    """What a restored database lacks, its first start would add: restoring does it before it is in place."""
    await site.stop()
    shutil.copyfile(backup, backup.with_name("older.db"))
    with closing(sqlite3.connect(backup.with_name("older.db"))) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        for table in ("nodes", "slots", "relays", "verdicts"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DROP INDEX tasks_dead")
        connection.execute("UPDATE alembic_version SET version_num = '0002'")
        connection.execute("DELETE FROM meta WHERE name = 'oldest_writer'")
        connection.commit()
    await put_back(site, backup.with_name("older.db"), path)
    await site.beat("w")
