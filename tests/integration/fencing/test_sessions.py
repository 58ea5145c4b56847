"""The guard in all that SQLAlchemy offers to write with: sessions, connections, plain and with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import Engine, Text, create_engine
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from liveness.fencing import FencingGuard, SeenToken, StaleToken
from liveness.sdk.values import FencingToken
from tests.integration.fencing.fenced_database import postgres_engine, sqlite_engine

OLD, NEW = FencingToken(1, 4), FencingToken(2, 1)


class Base(DeclarativeBase):
    pass


class Thumbnail(Base):
    __tablename__ = "thumbnails"
    photo: Mapped[str] = mapped_column(Text, primary_key=True)
    content: Mapped[str] = mapped_column(Text)


guard = FencingGuard(Base.metadata, "fences")


@pytest.mark.parametrize("dialect", ["sqlite"])
class TestPlain:
    @pytest.fixture
    def engine(self, url: str) -> Iterator[Engine]:
        engine = sqlite_engine(url)
        Base.metadata.create_all(engine)
        yield engine
        engine.dispose()

    def test_a_session_writes_what_was_checked_and_a_zombies_session_does_not(self, engine: Engine) -> None:
        with Session(engine) as session, guard.writing(session, "photo-17", NEW, "worker-b"):
            session.add(Thumbnail(photo="17", content="new"))
        with Session(engine) as session:
            with pytest.raises(StaleToken), guard.writing(session, "photo-17", OLD, "worker-a"):
                pytest.fail("a zombie's code must not run")
            assert session.get_one(Thumbnail, "17").content == "new"
            assert guard.newest(session, "photo-17") == SeenToken(*NEW)

    def test_an_error_in_the_body_rolls_the_token_back_too(self, engine: Engine) -> None:
        with Session(engine) as session:
            with pytest.raises(IntegrityError), guard.writing(session, "photo-17", NEW):
                session.add_all([Thumbnail(photo="17", content="half"), Thumbnail(photo="18")])
            assert guard.newest(session, "photo-17") is None
            assert session.get(Thumbnail, "17") is None

    def test_a_session_that_has_begun_cannot_begin_to_write(self, engine: Engine) -> None:
        """What it read already may be older than what the check would let it write over."""
        with Session(engine) as session:
            session.get(Thumbnail, "17")
            with pytest.raises(InvalidRequestError), guard.writing(session, "photo-17", NEW):
                pytest.fail("not reached")

    def test_a_connection(self, engine: Engine) -> None:
        with engine.connect() as connection:
            with guard.writing(connection, "photo-17", NEW):
                pass
            with pytest.raises(StaleToken), guard.writing(connection, "photo-17", OLD):
                pytest.fail("a zombie's code must not run")

    def test_a_scoped_session(self, engine: Engine) -> None:
        session = scoped_session(sessionmaker(engine))
        with guard.writing(session, "photo-17", NEW):
            pass
        with pytest.raises(StaleToken):
            guard.check(session, "photo-17", OLD)
        session.remove()

    def test_a_check_writes_nothing_of_what_the_session_has_pending(self, engine: Engine) -> None:
        """An error in the caller's own rows is the caller's, and must not look like a race for the token."""
        with Session(engine) as session:
            session.add(Thumbnail(photo="17", content="first"))
            session.commit()
            session.add(Thumbnail(photo="17", content="second"))
            guard.check(session, "photo-17", NEW)
            with pytest.raises(IntegrityError, match="thumbnails"):
                session.commit()

    def test_a_session_over_several_databases_finds_the_guards(
        self, engine: Engine, tmp_path: object
    ) -> None:
        elsewhere = create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
        with Session(elsewhere, binds={guard.table: engine, Thumbnail: engine}) as session:
            guard.check(session, "photo-17", NEW)
            session.commit()
        elsewhere.dispose()
        with engine.connect() as connection:
            assert guard.newest(connection, "photo-17") == SeenToken(*NEW)

    def test_the_table_is_created_from_an_engine_and_kept_if_it_is_there(self, engine: Engine) -> None:
        apart = FencingGuard(table_name="apart")
        apart.create(engine)
        with engine.begin() as connection:
            apart.check(connection, "photo-17", NEW)
        apart.create(engine)
        with engine.connect() as connection:
            assert apart.newest(connection, "photo-17") == SeenToken(*NEW)


@pytest.mark.parametrize("dialect", ["postgresql"])
class TestAsyncio:
    @pytest.fixture
    async def engine(self, url: str) -> AsyncIterator[AsyncEngine]:
        engine = postgres_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield engine
        await engine.dispose()

    async def test_a_session_writes_what_was_checked_and_a_zombies_session_does_not(
        self, engine: AsyncEngine
    ) -> None:
        async with AsyncSession(engine) as session, guard.writing_async(session, "photo-17", NEW, "worker-b"):
            session.add(Thumbnail(photo="17", content="new"))
        async with AsyncSession(engine) as session:
            with pytest.raises(StaleToken):
                async with guard.writing_async(session, "photo-17", OLD, "worker-a"):
                    pytest.fail("a zombie's code must not run")
            with pytest.raises(StaleToken):
                await guard.check_async(session, "photo-17", OLD, "worker-a")
            assert (await session.get_one(Thumbnail, "17")).content == "new"
            recorded = await session.run_sync(guard.newest, "photo-17")
            assert recorded is not None
            assert (recorded, recorded.holder) == (SeenToken(*NEW), "worker-b")

    async def test_an_error_in_the_body_rolls_the_token_back_too(self, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(IntegrityError):
                async with guard.writing_async(session, "photo-17", NEW):
                    session.add_all([Thumbnail(photo="17", content="half"), Thumbnail(photo="18")])
            assert await session.run_sync(guard.newest, "photo-17") is None
            assert await session.get(Thumbnail, "17") is None

    async def test_a_connection(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            async with guard.writing_async(connection, "photo-17", NEW):
                pass
            with pytest.raises(StaleToken):
                await guard.check_async(connection, "photo-17", OLD)

    async def test_the_table_is_created_where_a_transaction_is_under_way(self, engine: AsyncEngine) -> None:
        apart = FencingGuard(table_name="apart")
        async with engine.begin() as connection:
            for _ in range(2):
                await connection.run_sync(apart.create)
            await apart.check_async(connection, "photo-17", NEW)
