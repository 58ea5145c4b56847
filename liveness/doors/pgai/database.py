"""The follower's connection to the user's database: one reading at a time, and the rows behind the view.

A reading that fails, or takes too long, closes the connection; the next one opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

import asyncpg

from liveness.doors.pgai.connection import PgaiError, connect, describe
from liveness.doors.pgai.rows import ProcessRow, ProgressRow, Reading, process_row, progress_row
from liveness.doors.pgai.schema import (
    FOLLOWER_TABLE,
    PROCESS_TABLE,
    PROGRESS_TABLE,
    STATE_TABLE,
)

FAILURES = (
    OSError,
    ValueError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 5.0
ROWS_MAX = 10_000
COMPLETE_EVERY = 120
"""Every so many readings, all rows are read: a clock of the database that was set back hides some from the others."""
MARGIN_S = 3_600.0


class DatabaseAway(Exception):
    """The database could not be read. The message says why."""


class WorkerState(NamedTuple):
    """A row behind the view."""

    state: str
    lease_s: float
    verdict: str


_SERVER = """
SELECT extract(epoch FROM clock_timestamp())::float8 AS now_s,
       extract(epoch FROM pg_postmaster_start_time())::float8 AS started_s,
       (SELECT array_agg(left(application_name, 64)) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'pgai-worker-%') AS sessions"""

_COLUMNS = """
SELECT count(*) FILTER (WHERE table_name = $1) AS process, count(*) FILTER (WHERE table_name = $2) AS progress,
       count(*) FILTER (WHERE table_name = $1 AND column_name = 'said_goodbye') AS goodbye,
       NOT pg_is_in_recovery()
           AND coalesce(has_table_privilege(to_regclass('ai.' || $3), 'INSERT'), false)
           AND coalesce(has_table_privilege(to_regclass('ai.' || $4), 'INSERT'), false) AS may_write
  FROM information_schema.columns WHERE table_schema = 'ai'"""

_PROCESSES = f"""
SELECT id, left(version, 100) AS version,
       extract(epoch FROM started)::float8 AS started_s,
       extract(epoch FROM expected_heartbeat_interval)::float8 AS interval_s,
       extract(epoch FROM last_heartbeat)::float8 AS last_heartbeat_s,
       heartbeat_count AS heartbeats, success_count AS successes, error_count AS errors,
       left(last_error_message, 1024) AS last_error, {{goodbye}} AS said_goodbye
  FROM ai.{PROCESS_TABLE}
 WHERE last_heartbeat >= to_timestamp($1) OR id = ANY ($2::uuid[])
 ORDER BY last_heartbeat DESC LIMIT {ROWS_MAX}"""

_PROGRESS = f"""
SELECT vectorizer_id AS unit, success_count AS successes, error_count AS errors,
       last_success_process_id AS success_worker, extract(epoch FROM last_success_at)::float8 AS success_s,
       last_error_process_id AS error_worker, extract(epoch FROM last_error_at)::float8 AS error_s,
       left(last_error_message, 1024) AS last_error
  FROM ai.{PROGRESS_TABLE}
 WHERE $1 = '-infinity'::float8 OR greatest(last_success_at, last_error_at) >= to_timestamp($1)
 LIMIT {ROWS_MAX}"""

# A follower that was replaced does not write any more. One whose liveness was set up anew may, when the old one is silent.
_CLAIM = f"""
INSERT INTO ai.{FOLLOWER_TABLE} AS f (session, epoch) VALUES ($1, $2)
ON CONFLICT (only_row) DO UPDATE
   SET session = EXCLUDED.session, epoch = EXCLUDED.epoch, followed_at = clock_timestamp()
 WHERE f.session = EXCLUDED.session OR f.epoch < EXCLUDED.epoch
    OR f.followed_at < clock_timestamp() - interval '1 minute'
RETURNING 1"""

_SET_STATES = f"""
INSERT INTO ai.{STATE_TABLE} AS s (id, state, lease, verdict)
SELECT id, state, make_interval(secs => lease_s), verdict
  FROM unnest($1::uuid[], $2::text[], $3::float8[], $4::text[]) AS given (id, state, lease_s, verdict)
ON CONFLICT (id) DO UPDATE
   SET state = EXCLUDED.state, lease = EXCLUDED.lease, verdict = EXCLUDED.verdict, changed_at = clock_timestamp()
 WHERE (s.state, s.lease, s.verdict) IS DISTINCT FROM (EXCLUDED.state, EXCLUDED.lease, EXCLUDED.verdict)"""

_FORGET_STATES = f"""
DELETE FROM ai.{STATE_TABLE} s WHERE NOT EXISTS (SELECT FROM ai.{PROCESS_TABLE} p WHERE p.id = s.id)"""


class UserDatabase:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self._processes = ""
        self._has_progress = False
        self._records_goodbyes = False
        self.may_write = False
        self._newest_s = 0.0
        self._newest_progress_s = 0.0
        self._readings = 0

    def begin(self) -> None:
        """Let the next reading have all rows."""
        self._readings = 0

    async def read(self, followed: Collection[str]) -> Reading:
        """`followed`: the ids whose rows are read in any case. Raises DatabaseAway."""
        try:
            if self._connection is None or self._connection.is_closed():
                await self._connect()
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._read(followed)
        except DatabaseAway:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise DatabaseAway(f"no answer within {READ_TIMEOUT_S:.0f} s") from None
        except (PgaiError, *FAILURES) as error:
            self.close()
            raise DatabaseAway(describe(error)) from None

    async def write(
        self, session: str, epoch: int, states: Mapping[str, WorkerState], *, forget: bool
    ) -> bool:
        """Keep the view. Returns whether this follower may. Raises DatabaseAway."""
        connection = self._connection
        if connection is None:
            return False
        ids = list(states)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), connection.transaction():
                if not await connection.fetchval(_CLAIM, session, epoch):
                    return False
                if states:
                    columns = zip(*states.values(), strict=True)
                    await connection.execute(_SET_STATES, ids, *map(list, columns))
                if forget:
                    await connection.execute(_FORGET_STATES)
                return True
        except TimeoutError:
            self.close()
            raise DatabaseAway(f"no answer within {READ_TIMEOUT_S:.0f} s") from None
        except FAILURES as error:
            self.close()
            raise DatabaseAway(describe(error)) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _connect(self) -> None:
        connection = self._connection = await connect(self._dsn, CONNECT_TIMEOUT_S)
        async with asyncio.timeout(READ_TIMEOUT_S):
            found = await connection.fetchrow(
                _COLUMNS, PROCESS_TABLE, PROGRESS_TABLE, STATE_TABLE, FOLLOWER_TABLE
            )
        if not found["process"]:
            raise DatabaseAway("there is no table ai.vectorizer_worker_process; run `liveness pgai install`")
        self._has_progress = bool(found["progress"])
        self._records_goodbyes = bool(found["goodbye"])
        self.may_write = found["may_write"]
        self._processes = _PROCESSES.format(goodbye="said_goodbye" if found["goodbye"] else "false")
        self._readings = 0

    async def _read(self, followed: Collection[str]) -> Reading:
        connection = self._connection
        assert connection is not None
        is_complete = self._readings % COMPLETE_EVERY == 0
        since_s = -inf if is_complete else self._newest_s - MARGIN_S
        progress_since_s = -inf if is_complete else self._newest_progress_s - MARGIN_S
        # Sessions first: the heartbeat that ends a worker in order comes after its session, and must not be missed.
        server = await connection.fetchrow(_SERVER)
        rows = await connection.fetch(self._processes, since_s, list(followed))
        progress = await connection.fetch(_PROGRESS, progress_since_s) if self._has_progress else ()
        self._readings += 1
        processes: tuple[ProcessRow, ...] = tuple(filter(None, map(process_row, rows)))
        self._newest_s = max((row.last_heartbeat_s for row in processes), default=self._newest_s)
        units: tuple[ProgressRow, ...] = tuple(filter(None, map(progress_row, progress)))
        self._newest_progress_s = max(
            (max(row.success_s, row.error_s) for row in units), default=self._newest_progress_s
        )
        return Reading(
            now_s=server["now_s"],
            server_started_s=server["started_s"],
            sessions=frozenset(server["sessions"] or ()),
            processes=processes,
            progress=units,
            is_complete=is_complete,
            records_goodbyes=self._records_goodbyes,
        )


def session_names(id: str, sessions: frozenset[str]) -> tuple[str, ...]:
    """The connections of a worker: their names end with the first part of its id."""
    short = id.partition("-")[0]
    return tuple(name for name in sessions if name.endswith(f": {short}"))
