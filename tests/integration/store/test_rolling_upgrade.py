"""Two versions on one database: today's, and an invented next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from liveness.domain.verdicts import VerdictCounts
from liveness.store import migrate
from liveness.store.errors import CommitRejected, ShardsLost, WrittenByNewerVersion
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.store.next_version import NEXT, TODAY, write_migrations
from tests.system.cli.test_doctor import examine
from tests.unit.store.samples import About, Owner, available, described, key, reschedule, snapshot_of, take

MakeNext = Callable[[str], Path]


@pytest.fixture
def next_version(tmp_path: Path) -> MakeNext:
    return lambda statement: write_migrations(tmp_path / "migrations", statement)


async def open_with(store_database: StoreDatabase, migrations: Path) -> SqlStore:
    store = SqlStore(store_database.connect(), migrations)
    await store.open(SHARD_COUNT, "tests")
    return store


async def commit_everything(owner: Owner, name: str) -> None:
    await owner.commit(
        [About(described(name), key(name))],
        activities=dict([available(name)]),
        new_tasks=[reschedule(name)],
        config={name: {"max_workers": 5.0}},
        checkpoint=[],
    )


async def test_both_versions_commit_concurrently_after_the_newer_one_migrated(
    store_database: StoreDatabase, next_version: MakeNext
) -> None:
    today = await store_database.open()
    ours, later = await take(today, 0, 1)
    await commit_everything(ours, "before")
    next_ = await open_with(store_database, next_version(f'oldest_writer = "{TODAY}"'))
    [theirs] = await take(next_, 2)
    await commit_everything(ours, "running-on")
    await commit_everything(theirs, "newer")
    assert (await snapshot_of(next_, 1)).epoch == later.epoch + 1, "handed over to the newer version"
    with pytest.raises(ShardsLost):
        await commit_everything(later, "too late")
    again = await store_database.open()
    [back] = await take(again, 1)
    await commit_everything(back, "started-anew")
    assert len((await store_database.dump())["tasks"]) == 4
    revision = await store_database.run(
        lambda c: c.execute(text("SELECT version_num FROM alembic_version")).scalar()
    )
    assert revision == NEXT, "the older version migrates neither up nor down"


@pytest.mark.parametrize("statement", ["", f'oldest_writer = "{NEXT}"'])
async def test_an_incompatible_migration_is_refused_by_older_code(
    store_database: StoreDatabase, next_version: MakeNext, statement: str
) -> None:
    await store_database.open()
    await open_with(store_database, next_version(statement))
    with pytest.raises(WrittenByNewerVersion, match=f"holds tables of revision {NEXT}, which this version"):
        await store_database.open()


async def test_running_nodes_excluded_by_a_migration_can_neither_commit_nor_take_shards(
    store_database: StoreDatabase, next_version: MakeNext
) -> None:
    today = await store_database.open()
    [ours] = await take(today, 0)
    next_ = await open_with(store_database, next_version(""))
    before = await store_database.dump()
    with pytest.raises(ShardsLost):
        await commit_everything(ours, "too late")
    with pytest.raises(WrittenByNewerVersion, match=NEXT):
        await take(today, 0)
    assert await store_database.dump() == before
    [theirs] = await take(next_, 0)
    await commit_everything(theirs, "newer")


async def test_a_migration_replaces_the_recorded_oldest_writer(
    store_database: StoreDatabase, next_version: MakeNext
) -> None:
    await store_database.open()
    await store_database.execute("UPDATE meta SET value = '0001' WHERE name = 'oldest_writer'")
    await open_with(store_database, next_version(""))
    with pytest.raises(WrittenByNewerVersion):
        await store_database.open()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
async def test_a_migration_that_cannot_lock_its_tables_gives_up_instead_of_blocking_commits(
    store_database: StoreDatabase, next_version: MakeNext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later statement queues behind a statement that waits for a table lock."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_MS", 100)
    today = await store_database.open()
    [ours] = await take(today, 0)
    reading, done = asyncio.Event(), asyncio.Event()
    folder = next_version(f'oldest_writer = "{TODAY}"')
    loop = asyncio.get_running_loop()

    async def read_for_long() -> None:
        async with store_database.connect()._engine.connect() as connection:  # type: ignore[attr-defined]
            await connection.execute(text("SELECT COUNT(*) FROM activities"))
            reading.set()
            await done.wait()

    reader = loop.create_task(read_for_long())
    await reading.wait()
    with pytest.raises(CommitRejected, match="lock timeout"):
        await open_with(store_database, folder)
    await commit_everything(ours, "unaffected")
    done.set()
    await reader
    await open_with(store_database, folder)


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_the_doctor_distinguishes_compatible_and_incompatible_newer_databases(
    store_database: StoreDatabase, next_version: MakeNext, tmp_path: Path
) -> None:
    await open_with(store_database, next_version(f'oldest_writer = "{TODAY}"'))
    await store_database.close()
    _, found = await asyncio.to_thread(examine, f"sqlite:///{tmp_path}/liveness.db")
    assert (found["tables"]["verdict"], found["tables"]["saw"]) == (
        "ok",
        f"revision {NEXT} of a newer version",
    )
    await store_database.execute("DELETE FROM meta WHERE name = 'oldest_writer'")
    await store_database.close()
    _, found = await asyncio.to_thread(examine, f"sqlite:///{tmp_path}/liveness.db")
    assert found["tables"]["verdict"] == "failed"


async def test_the_migration_for_death_counts_does_not_exclude_the_previous_version(
    store_database: StoreDatabase,
) -> None:
    """The tables of revision 0003 are migrated while a server runs on them."""

    def at_0003(connection: Connection) -> None:
        for revision in ("0001", "0002", "0003"):
            script = migrate.MIGRATIONS / "versions" / f"{revision}.{connection.dialect.name}.sql"
            for statement in script.read_text().split(";\n"):
                if statement.strip():
                    connection.exec_driver_sql(statement)
        connection.execute(
            text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        )
        connection.execute(text("INSERT INTO alembic_version VALUES ('0003')"))
        connection.execute(text(f"INSERT INTO meta VALUES ('shard_count', '{SHARD_COUNT}')"))
        for shard_id in range(SHARD_COUNT):
            connection.execute(text(f"INSERT INTO shards VALUES ({shard_id}, 7, 0, 0, '[]', 'node-1')"))

    await store_database.run(at_0003)
    store = await store_database.open()
    assert [row[1] for row in (await store_database.dump())["shards"]] == [7] * SHARD_COUNT, (
        "it keeps its shards"
    )
    assert dict((await store_database.dump())["meta"])["oldest_writer"] == "0003", (
        "the older version may still take shards"
    )
    assert not migrate.Revisions().excludes_writer("0003")
    [owner] = await take(store, 0)
    await owner.commit(verdicts={"orders": VerdictCounts(1, 0)})
    assert await store.verdicts() == {"orders": VerdictCounts(1, 0)}
