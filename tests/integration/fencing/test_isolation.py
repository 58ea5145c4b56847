"""Snapshot transactions: they cannot write past a token they do not see, and a retry decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from liveness.fencing import FencingGuard, NotInTransaction, SeenToken, SnapshotTooOld, StaleToken
from tests.integration.fencing.fenced_database import (
    FencedDatabase,
    FencingToken,
    guard,
    note,
    notes,
    put_note,
    sqlite_engine,
)

OLD, NEW = FencingToken(1, 4), FencingToken(2, 1)


def take_snapshot(connection: Connection) -> None:
    connection.execute(select(notes)).all()


@pytest.mark.parametrize("dialect", ["postgresql"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
class TestPostgresSnapshots:
    async def test_a_former_holder_with_an_old_snapshot_cannot_write(
        self, database: FencedDatabase, level: str
    ) -> None:
        newer, former = await database.writer(), await database.writer(isolation_level=level)
        await newer.check("photo-17", FencingToken(1, 1))
        await newer.commit()
        await former.run(take_snapshot)
        await newer.check("photo-17", NEW)
        await newer.run(put_note, "photo-17", "by the new holder")
        await newer.commit()
        with pytest.raises(DBAPIError) as caught:
            await former.check("photo-17", OLD)
        assert getattr(caught.value.orig, "sqlstate", None) == "40001"
        await former.rollback()
        with pytest.raises(StaleToken):
            await former.check("photo-17", OLD)

    async def test_a_former_holder_whose_snapshot_shows_the_new_one_is_refused(
        self, database: FencedDatabase, level: str
    ) -> None:
        newer, former = await database.writer(), await database.writer(isolation_level=level)
        await newer.check("photo-17", NEW)
        await newer.commit()
        with pytest.raises(StaleToken):
            await former.check("photo-17", OLD)

    @pytest.mark.parametrize(("mine", "passes"), [(OLD, False), (FencingToken(3, 1), True)])
    async def test_a_first_token_hidden_by_the_snapshot_neither_passes_nor_refuses(
        self, database: FencedDatabase, level: str, mine: FencingToken, passes: bool
    ) -> None:
        """The hidden token may be older or newer: to refuse the current holder would be as wrong as to admit
        a former one."""
        other, writer = await database.writer(), await database.writer(isolation_level=level)
        await writer.run(take_snapshot)
        await other.check("photo-17", NEW)
        await other.commit()
        with pytest.raises((SnapshotTooOld, DBAPIError)) as caught:
            await writer.check("photo-17", mine)
        if isinstance(caught.value, DBAPIError):
            assert getattr(caught.value.orig, "sqlstate", None) == "40001"
        else:
            assert str(caught.value) == (
                "This transaction cannot see the token that another recorded for photo-17; "
                "roll back and run it again."
            )
        await writer.rollback()
        if passes:
            await writer.check("photo-17", mine)
            await writer.commit()
            assert await database.read_committed(guard.newest, "photo-17") == SeenToken(*mine)
        else:
            with pytest.raises(StaleToken):
                await writer.check("photo-17", mine)

    async def test_the_current_holder_writes_repeatedly(self, database: FencedDatabase, level: str) -> None:
        writer = await database.writer(isolation_level=level)
        for token in (OLD, OLD, NEW):
            await writer.check("photo-17", token)
            await writer.commit()


@pytest.mark.parametrize("dialect", ["sqlite"])
class TestSqliteWithExplicitTransactions:
    """Write-ahead log, with transactions that start where SQLAlchemy says instead of where the driver
    guesses."""

    @pytest.fixture
    def engine(self, database: FencedDatabase) -> Iterator[Engine]:
        engine = create_engine(database.url, poolclass=NullPool)

        @event.listens_for(engine, "connect")
        def on_connect(connection: sqlite3.Connection, _: object) -> None:
            connection.isolation_level = None
            connection.execute("PRAGMA journal_mode=WAL")

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        yield engine
        engine.dispose()

    def test_a_transaction_that_read_before_the_new_holders_write_cannot_write(self, engine: Engine) -> None:
        with engine.connect() as newer, engine.connect() as former:
            take_snapshot(former)
            guard.check(newer, "photo-17", NEW)
            newer.commit()
            with pytest.raises(OperationalError, match="locked"):
                guard.check(former, "photo-17", OLD)
            former.rollback()
            with pytest.raises(StaleToken):
                guard.check(former, "photo-17", OLD)

    def test_a_rollback_includes_the_check(self, engine: Engine) -> None:
        with engine.connect() as writer:
            guard.check(writer, "photo-17", NEW)
            put_note(writer, "photo-17", "half a thumbnail")
            writer.rollback()
            assert guard.newest(writer, "photo-17") is None
            assert note(writer, "photo-17") is None

    def test_creating_the_table_is_committed(self, engine: Engine) -> None:
        apart = FencingGuard(table_name="apart")
        apart.create(engine)
        with engine.begin() as writer:
            apart.check(writer, "photo-17", NEW)


class TestWithoutATransaction:
    """A check that is committed by itself would protect nothing, and would go unnoticed."""

    @pytest.mark.parametrize("dialect", ["postgresql"])
    @pytest.mark.parametrize("known", [False, True])
    async def test_autocommit_is_refused_on_postgresql(self, database: FencedDatabase, known: bool) -> None:
        if known:
            writer = await database.writer()
            await writer.check("photo-17", OLD)
            await writer.commit()
        writer = await database.writer(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransaction, match="without AUTOCOMMIT"):
            await writer.check("photo-17", NEW)

    @pytest.mark.parametrize("dialect", ["sqlite"])
    @pytest.mark.parametrize("known", [False, True])
    def test_autocommit_is_refused_on_sqlite(self, database: FencedDatabase, known: bool) -> None:
        engine = sqlite_engine(database.url)
        if known:
            with engine.begin() as connection:
                guard.check(connection, "photo-17", OLD)
        with (
            engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection,
            pytest.raises(NotInTransaction),
        ):
            guard.check(connection, "photo-17", NEW)


async def test_a_savepoint_of_the_caller_counts_as_a_transaction(database: FencedDatabase) -> None:
    """Rolling back to the savepoint includes the token."""
    writer = await database.writer()

    def work(connection: Connection) -> None:
        connection.execute(text("UPDATE notes SET text = text"))  # SQLite's driver starts a transaction here
        part = connection.begin_nested()
        guard.check(connection, "photo-17", NEW)
        put_note(connection, "photo-17", "half a thumbnail")
        part.rollback()
        guard.check(connection, "photo-17", OLD)

    await writer.run(work)
    await writer.commit()
    assert await database.read_committed(guard.newest, "photo-17") == SeenToken(*OLD)
    assert await database.read_committed(note, "photo-17") is None
