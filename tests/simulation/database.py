"""One database for all nodes: production's SQL on SQLite in memory, with the failures of a real database around it.

A transaction that was sent to the database runs there whatever happens to the process that sent it: a COMMIT that is
under way when its process is stopped or killed takes place, and no process receives its answer.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from random import Random
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from liveness.store.database import ConnectionCounts
from liveness.store.errors import CommitRejected, CommitUnknown, ReadFailed, StoreBroken, StoreError
from liveness.store.migrate import Revisions, migrate
from tests.simulation.loop import Process, SimulatedLoop

T = TypeVar("T")

ANSWER_S_MAX = 10.0
"""As in `liveness/store/postgres.py`: the longest wait for an answer."""
RESET_S = 0.05
RETRANSMISSIONS_S = (0.2, 0.4, 0.8, 1.6, 2.0)
"""TCP sends a lost packet again after these times, each after the one before; then the connection's time-out of 5 s is over."""


class TransactionFault(Enum):
    """What can happen to a transaction that writes."""

    NONE = "nothing"
    REJECTED = "it fails and is rolled back"
    UNKNOWN_LOST = "the connection breaks, and it was not committed"
    UNKNOWN_DONE = "the connection breaks, but it was committed"
    CRASH_BEFORE = "the process dies before the commit"
    CRASH_AFTER = "the process dies after the commit and before any answer"
    BROKEN = "the disk fails"


@dataclass
class Health:
    """The present condition of the database."""

    delay_s: tuple[float, float] = (0.000_2, 0.002)
    transaction_faults: tuple[tuple[TransactionFault, float], ...] = ()
    """Each with the share of transactions that it hits."""
    reads_fail: float = 0.0


_COMPILED: dict[Any, Any] = {}
"""Compiled statements, which are the same in every world."""


@cache
def _template() -> bytes:
    """Return an empty database with all tables. Creating one takes longer than many simulations."""
    engine = _engine()
    with engine.begin() as connection:
        migrate(connection, Revisions())
    driver = engine.raw_connection().driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver.serialize()


def _engine() -> Engine:
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={"cached_statements": 512},
        execution_options={"compiled_cache": _COMPILED},
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("BEGIN")

    return engine


class SharedDatabase:
    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.process = Process(loop, "database", "database")
        self.cut: dict[str, float] = {}
        """Hosts that cannot reach the database, with the time since when."""
        self.on_commit: Callable[[sqlite3.Connection, str], None] = lambda _, __: None
        """Called after each transaction that wrote, with its host."""
        self.on_transaction_fault: Callable[[TransactionFault, Process], None] = lambda _, __: None
        self.on_refused: Callable[[StoreError, Process], None] = lambda _, __: None
        """Called when the store's own checks reject a transaction."""
        self.on_vain: Callable[[], None] = lambda: None
        """Called when a take-over gets no shard."""
        self.sessions: dict[str, set[_Session]] = {}
        self.transactions = 0
        self.transaction_faults: Counter[TransactionFault] = Counter()
        self._engine = _engine()
        driver = self._engine.raw_connection().driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.deserialize(_template())
        self.driver = driver
        self._connection = self._engine.connect()

    def execute(self, work: Callable[[Connection], T], owner: str) -> T:
        self.transactions += 1
        with self._connection.begin():
            result = work(self._connection)
        self.on_commit(self.driver, owner)
        return result

    def try_out(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, and undo its changes."""
        transaction = self._connection.begin()
        try:
            return work(self._connection)
        finally:
            transaction.rollback()

    def draw(self, health: Health) -> TransactionFault:
        if health.transaction_faults:
            left = self.random.random()
            for fault, share in health.transaction_faults:
                if (left := left - share) < 0:
                    self.transaction_faults[fault] += 1
                    return fault
        return TransactionFault.NONE


class _Session:
    """One transaction of one owner."""

    def __init__(self, done: asyncio.Future[Any]) -> None:
        self.done = done
        self.ended = False


class NodeDatabase:
    """The database as one node sees it; replaces `PostgresDatabase` and `SqliteDatabase`."""

    def __init__(self, shared: SharedDatabase, process: Process, owner: str, health: Health) -> None:
        self._shared = shared
        self._process = process
        self._owner = owner
        self._health = health
        self._broken: StoreBroken | None = None

    async def write(self, work: Callable[[Connection], T]) -> T:
        if self._broken is not None:
            raise self._broken
        return await self._run(work, writes=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._run(work, writes=False)

    search = read

    def connection_counts(self) -> ConnectionCounts:
        return ConnectionCounts()

    async def _run(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        shared = self._shared
        loop = shared.loop
        done: asyncio.Future[T] = loop.create_future()
        session = _Session(done)
        own = shared.sessions.setdefault(self._owner, set())
        own.add(session)
        if self._process.host not in shared.cut:
            self._send(self._delay_s(), work, session, writes)
        elif shared.random.random() < 0.5:
            self._process.at(loop.time() + RESET_S, _fail, done, _not_sent(writes))
        else:
            self._retransmit(0, work, session, writes)
        try:
            return await done
        finally:
            own.discard(session)

    def _retransmit(
        self, number: int, work: Callable[[Connection], T], session: _Session, writes: bool
    ) -> None:
        """Send the transaction as often as TCP does, until the host is no longer cut off."""
        if self._process.host not in self._shared.cut:
            self._send(0, work, session, writes)
        elif number < len(RETRANSMISSIONS_S):
            at = self._shared.loop.time() + RETRANSMISSIONS_S[number]
            self._process.at(at, self._retransmit, number + 1, work, session, writes)
        else:
            _fail(session.done, _not_sent(writes))

    def _send(self, delay_s: float, work: Callable[[Connection], T], session: _Session, writes: bool) -> None:
        now, done = self._shared.loop.time(), session.done
        self._shared.process.at(now + delay_s, self._arrive, work, session, writes)
        silent: StoreError = (CommitUnknown if writes else ReadFailed)(detail="simulated: no answer")
        limit = self._process.at(now + ANSWER_S_MAX, _fail, done, silent)
        done.add_done_callback(lambda _: limit.cancel())

    def _arrive(self, work: Callable[[Connection], T], session: _Session, writes: bool) -> None:
        """Run the transaction at the database."""
        shared, process = self._shared, self._process
        if session.ended:
            self._answer(_fail, session.done, CommitRejected(detail="simulated: the session was ended"))
            return
        if not writes:
            if self._health.reads_fail and shared.random.random() < self._health.reads_fail:
                self._answer(_fail, session.done, ReadFailed(detail="simulated: the read failed"))
            else:
                self._execute(work, session, writes=False)
            return
        fault = shared.draw(self._health)
        if fault is not TransactionFault.NONE:
            shared.on_transaction_fault(fault, process)
        if fault is TransactionFault.REJECTED:
            self._answer(_fail, session.done, CommitRejected(detail="simulated: rolled back"))
        elif fault is TransactionFault.CRASH_BEFORE:
            process.kill()
        elif fault is TransactionFault.UNKNOWN_LOST:
            self._answer(_fail, session.done, CommitUnknown(detail="simulated: connection lost"))
        elif fault is TransactionFault.UNKNOWN_DONE:
            self._execute(work, session, writes=True, then=CommitUnknown(detail="simulated: connection lost"))
        elif fault is TransactionFault.CRASH_AFTER:
            self._execute(work, session, writes=True)
            process.kill()
        elif fault is TransactionFault.BROKEN:
            self._broken = StoreBroken(detail="simulated: fsync failed")
            if shared.random.random() < 0.5:
                self._execute(work, session, writes=True, then=self._broken)
            else:
                self._answer(_fail, session.done, self._broken)
        else:
            self._execute(work, session, writes=True)

    def _execute(
        self,
        work: Callable[[Connection], T],
        session: _Session,
        *,
        writes: bool,
        then: StoreError | None = None,
    ) -> None:
        shared = self._shared
        try:
            result = shared.execute(work, self._owner) if writes else shared.try_out(work)
        except StoreError as error:
            shared.on_refused(error, self._process)
            self._answer(_fail, session.done, error)
        except (DBAPIError, sqlite3.Error) as error:
            kind = CommitRejected if writes else ReadFailed
            self._answer(_fail, session.done, kind(detail=str(error)))
        else:
            if writes and result == []:
                shared.on_vain()
            if then is not None:
                self._answer(_fail, session.done, then)
            else:
                self._answer(_succeed, session.done, result)

    def _answer(self, tell: Callable[..., None], *args: Any, number: int = 0) -> None:
        """Answer the process, if it still runs, as often as TCP does until it can be reached."""
        shared = self._shared
        if self._process.host not in shared.cut:
            self._process.at(shared.loop.time() + self._delay_s(), tell, *args)
        elif number < len(RETRANSMISSIONS_S):
            again = partial(self._answer, tell, *args, number=number + 1)
            shared.process.at(shared.loop.time() + RETRANSMISSIONS_S[number], again)

    def _delay_s(self) -> float:
        low, high = self._health.delay_s
        return low + (high - low) * self._shared.random.random()

    async def end_sessions(self, owners: Collection[str]) -> int:
        """Undo the transactions that these owners have begun and the database has not run yet."""

        def end(_: Connection) -> int:
            ended = 0
            for owner in sorted(owners):
                for session in self._shared.sessions.get(owner, ()):
                    if not session.ended and not session.done.done():
                        session.ended = True
                        ended += 1
            return ended

        return await self.read(end)

    async def close(self) -> None:
        pass


def _not_sent(writes: bool) -> StoreError:
    return (CommitRejected if writes else ReadFailed)(detail="simulated: no connection")


def _succeed(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: StoreError) -> None:
    if not done.done():
        done.set_exception(error)
