"""The guard with SQLAlchemy's sessions and connections, synchronous and asynchronous."""

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

    def test_only_the_session_of_the_newest_holder_writes(self, engine: Engine) -> None:
        with Session(engine) as session, guard.writing(session, "photo-17", NEW, "worker-b"):
            session.add(Thumbnail(photo="17", content="new"))
        with Session(engine) as session:
            with pytest.raises(StaleToken), guard.writing(session, "photo-17", OLD, "worker-a"):
                pytest.fail("code of a former holder must not run")
            assert session.get_one(Thumbnail, "17").content == "new"
            assert guard.newest(session, "photo-17") == SeenToken(*NEW)

    def test_an_error_in_the_body_rolls_back_the_token(self, engine: Engine) -> None:
        with Session(engine) as session:
            with pytest.raises(IntegrityError), guard.writing(session, "photo-17", NEW):
                session.add_all([Thumbnail(photo="17", content="half"), Thumbnail(photo="18")])
            assert guard.newest(session, "photo-17") is None
            assert session.get(Thumbnail, "17") is None

    def test_a_session_with_an_open_transaction_cannot_start_a_guarded_write(self, engine: Engine) -> None:
        """Rows it has read may be older than the rows that the check would let it overwrite."""
        with Session(engine) as session:
            session.get(Thumbnail, "17")
            with pytest.raises(InvalidRequestError), guard.writing(session, "photo-17", NEW):
                pytest.fail("not reached")

    def test_a_connection_can_be_guarded(self, engine: Engine) -> None:
        with engine.connect() as connection:
            with guard.writing(connection, "photo-17", NEW):
                pass
            with pytest.raises(StaleToken), guard.writing(connection, "photo-17", OLD):
                pytest.fail("code of a former holder must not run")

    def test_a_scoped_session_can_be_guarded(self, engine: Engine) -> None:
        session = scoped_session(sessionmaker(engine))
        with guard.writing(session, "photo-17", NEW):
            pass
        with pytest.raises(StaleToken):
            guard.check(session, "photo-17", OLD)
        session.remove()

    def test_a_check_does_not_flush_pending_rows(self, engine: Engine) -> None:
        """An error in the caller's own rows must not look like a race for the token."""
        with Session(engine) as session:
            session.add(Thumbnail(photo="17", content="first"))
            session.commit()
            session.add(Thumbnail(photo="17", content="second"))
            guard.check(session, "photo-17", NEW)
            with pytest.raises(IntegrityError, match="thumbnails"):
                session.commit()

    def test_a_session_over_several_databases_uses_that_of_the_guard(
        self, engine: Engine, tmp_path: object
    ) -> None:
        other_engine = create_engine(f"sqlite:///{tmp_path}/other.db")
        with Session(other_engine, binds={guard.table: engine, Thumbnail: engine}) as session:
            guard.check(session, "photo-17", NEW)
            session.commit()
        other_engine.dispose()
        with engine.connect() as connection:
            assert guard.newest(connection, "photo-17") == SeenToken(*NEW)

    def test_creating_an_existing_table_keeps_it(self, engine: Engine) -> None:
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

    async def test_only_the_session_of_the_newest_holder_writes(self, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, guard.writing_async(session, "photo-17", NEW, "worker-b"):
            session.add(Thumbnail(photo="17", content="new"))
        async with AsyncSession(engine) as session:
            with pytest.raises(StaleToken):
                async with guard.writing_async(session, "photo-17", OLD, "worker-a"):
                    pytest.fail("code of a former holder must not run")
            with pytest.raises(StaleToken):
                await guard.check_async(session, "photo-17", OLD, "worker-a")
            assert (await session.get_one(Thumbnail, "17")).content == "new"
            recorded = await session.run_sync(guard.newest, "photo-17")
            assert recorded is not None
            assert (recorded, recorded.holder) == (SeenToken(*NEW), "worker-b")

    async def test_an_error_in_the_body_rolls_back_the_token(self, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(IntegrityError):
                async with guard.writing_async(session, "photo-17", NEW):
                    session.add_all([Thumbnail(photo="17", content="half"), Thumbnail(photo="18")])
            assert await session.run_sync(guard.newest, "photo-17") is None
            assert await session.get(Thumbnail, "17") is None

    async def test_a_connection_can_be_guarded(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            async with guard.writing_async(connection, "photo-17", NEW):
                pass
            with pytest.raises(StaleToken):
                await guard.check_async(connection, "photo-17", OLD)

    async def test_the_table_can_be_created_within_a_transaction(self, engine: AsyncEngine) -> None:
        apart = FencingGuard(table_name="apart")
        async with engine.begin() as connection:
            for _ in range(2):
                await connection.run_sync(apart.create)
            await apart.check_async(connection, "photo-17", NEW)
