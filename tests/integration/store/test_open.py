"""Creating, migrating and refusing a database, and the guarantees of an open one."""

import asyncio
import resource
import socket
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from liveness.store import postgres
from liveness.store.database_identity import IDENTITY, WAL_TIMELINE
from liveness.store.errors import (
    CommitRejected,
    ReadFailed,
    StoreInUse,
    StoreUnusable,
    WrittenByNewerVersion,
    WrongShardCount,
)
from liveness.store.postgres import PostgresDatabase
from liveness.store.schema import metadata
from liveness.store.sql import SqlStore
from liveness.store.sqlite import SqliteDatabase
from tests.databases import SHARD_COUNT, StoreDatabase, sqlite_store_database
from tests.unit.store.samples import About, described, key, take_one


async def test_opening_again_changes_nothing(store_database: StoreDatabase) -> None:
    owner = await take_one(await store_database.open())
    await owner.commit([About(described(), key())])
    before = await store_database.dump()
    await store_database.open()
    assert await store_database.dump() == before


async def test_a_new_store_records_its_shard_count_and_creator(
    store_database: StoreDatabase,
) -> None:
    await store_database.open(3, "liveness 1.2.3")
    dump = await store_database.dump()
    meta = dict(dump["meta"])
    for name in ("oldest_writer", IDENTITY, WAL_TIMELINE):
        meta.pop(name, None)
    assert meta == {"created_by": "liveness 1.2.3", "shard_count": "3"}
    assert [row[0] for row in dump["shards"]] == [0, 1, 2]


async def test_a_wrong_shard_count_is_refused_with_the_right_one(store_database: StoreDatabase) -> None:
    await store_database.open(SHARD_COUNT)
    before = await store_database.dump()
    with pytest.raises(WrongShardCount) as refused:
        await store_database.open(16)
    assert str(refused.value) == "The database was created with 4 shards, not 16; start with --shards 4."
    assert await store_database.dump() == before


async def test_tables_of_a_newer_version_are_refused(store_database: StoreDatabase) -> None:
    await store_database.open()
    await store_database.execute("UPDATE alembic_version SET version_num = '9999'")
    await store_database.execute("UPDATE meta SET value = '9998' WHERE name = 'oldest_writer'")
    with pytest.raises(WrittenByNewerVersion) as refused:
        await store_database.open()
    assert str(refused.value) == (
        "The database holds tables of revision 9999, which this version does not know; "
        "start the version that wrote it, or a newer one."
    )


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
async def test_nodes_that_start_concurrently_on_an_empty_database_all_open_it(
    store_database: StoreDatabase,
) -> None:
    """Only for PostgreSQL: a file has a single server."""
    stores = [SqlStore(store_database.connect()) for _ in range(4)]
    await asyncio.gather(*(store.open(SHARD_COUNT, f"node-{index}") for index, store in enumerate(stores)))
    assert len((await store_database.dump())["shards"]) == SHARD_COUNT


async def test_a_migration_that_fails_midway_leaves_no_tables(store_database: StoreDatabase) -> None:
    await store_database.execute("CREATE TABLE workers (in_the_way INTEGER)")
    with pytest.raises(Exception, match="already exists"):
        await store_database.open()
    assert await store_database.run(lambda connection: inspect(connection).get_table_names()) == ["workers"]


async def test_migrated_tables_equal_the_schema(store_database: StoreDatabase) -> None:
    """Compares tables, columns, types, nullability, indices and uniqueness with Alembic."""
    await store_database.open()

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "include_name": lambda name, *_: name != "alembic_version"},
        )
        return list(compare_metadata(context, metadata))

    assert await store_database.run(differences) == []


async def test_migrated_tables_have_the_same_catalogue_as_the_schema(
    store_database: StoreDatabase,
) -> None:
    """Compares what Alembic does not: collations, checks, partial indices, STRICT, AUTOINCREMENT. The
    schema's own statements create a second set of tables, and the catalogue of the database must show the
    same for both."""
    await store_database.open()
    migrated = await store_database.run(_catalogue)

    def create_from_schema(connection: Connection) -> None:
        metadata.drop_all(connection)
        metadata.create_all(connection)

    await store_database.run(create_from_schema)
    assert await store_database.run(_catalogue) == migrated


def _catalogue(connection: Connection) -> list[tuple[object, ...]]:
    """Return the tables and indices as the database describes them."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(
            text(
                "SELECT type, name, sql FROM sqlite_master WHERE name <> 'alembic_version' AND sql IS NOT NULL"
            )
        )
        return sorted((kind, name, _plain(sql)) for kind, name, sql in rows)
    columns = connection.execute(
        text(
            "SELECT table_name, column_name, data_type, is_nullable, collation_name, column_default "
            "FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
        )
    )
    constraints = connection.execute(
        text(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace AND conrelid <> 'alembic_version'::regclass"
        )
    )
    indices = connection.execute(
        text("SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    )
    return sorted(tuple(map(str, row)) for rows in (columns, constraints, indices) for row in rows)


def _plain(statement: str) -> str:
    """Normalise white space and needless quotes."""
    return " ".join(statement.replace('"', "").replace("(", " ( ").replace(")", " ) ").split()).replace(
        " ,", ","
    )


async def test_a_second_server_on_the_same_file_is_refused_and_told_the_first(tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    first, second = SqliteDatabase(path), SqliteDatabase(path)
    try:
        first.lock()
        first.write_lock_holder("process 4711")
        with pytest.raises(StoreInUse) as refused:
            second.lock()
        assert str(refused.value) == (
            f"{path} is in use by another liveness server (process 4711); "
            "stop it first or choose another file with --db."
        )
    finally:
        await second.close()
        await first.close()


async def test_a_file_can_be_locked_again_after_its_server_closed_it(tmp_path: Path) -> None:
    first, second = SqliteDatabase(tmp_path / "liveness.db"), SqliteDatabase(tmp_path / "liveness.db")
    first.lock()
    await first.close()
    second.lock()
    await second.close()


async def test_a_file_in_a_missing_folder_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "missing" / "liveness.db")
    with pytest.raises(StoreUnusable, match=r"cannot open .*: No such file or directory"):
        database.lock()
    await database.close()


async def test_a_full_disk_is_reported_with_a_clear_message(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "liveness.db")
    database.lock()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreUnusable, match=r"cannot write beside .*: File too large"):
            database.write_lock_holder("process 4711")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await database.close()


async def test_every_commit_is_synced_to_disk(store_database: StoreDatabase) -> None:
    """The default of the test server differs: see `tests.databases`."""

    def settings(connection: Connection) -> dict[str, object]:
        if connection.dialect.name == "postgresql":
            return {"synchronous_commit": connection.execute(text("SHOW synchronous_commit")).scalar_one()}
        names = ("journal_mode", "synchronous")
        return {name: connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in names}

    expected = {
        "sqlite": {"journal_mode": "wal", "synchronous": 2},
        "postgresql": {"synchronous_commit": "on"},
    }
    assert await store_database.run(settings) == expected[store_database.dialect]


async def test_the_read_connection_of_a_file_cannot_write(tmp_path: Path) -> None:
    store_database = sqlite_store_database(tmp_path)
    await store_database.open()
    with pytest.raises(Exception, match="attempt to write a readonly database"):
        await store_database.connect().read(lambda connection: connection.execute(text("DELETE FROM log")))
    await store_database.close()


@pytest.mark.parametrize("hosts", ["one", "several"])
async def test_a_postgresql_that_does_not_answer_is_reported_with_the_time_that_was_waited(
    monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = (
            f"postgresql://{address}/x"
            if hosts == "one"
            else f"postgresql:///x?host={address}&host={address}"
        )
        database = PostgresDatabase(url)
        with pytest.raises(ReadFailed, match=r"no answer within 0\.1 s"):
            await SqlStore(database).read_cluster()
        with pytest.raises(CommitRejected, match=r"no connection: .*no answer within 0\.1 s"):
            await SqlStore(database).open(1, "tests")
        await database.close()
