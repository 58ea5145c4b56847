"""The SQL of pgai's worker tracking: its tables and functions, and the view that the follower keeps.

Clients are strict: a second overload of a function, and any exception other than a lost connection, end their heartbeats for
good. So each function exists once, accepts NULL and numbers of any size, and knows no id that it refuses.
"""

from __future__ import annotations

from typing import NamedTuple

MARKER = "installed by liveness pgai"
"""The comment on each object that is ours. What lacks it belongs to somebody else."""
SCHEMA = "ai"
PROCESS_TABLE = "vectorizer_worker_process"
PROGRESS_TABLE = "vectorizer_worker_progress"
STATE_TABLE = "liveness_worker_state"
FOLLOWER_TABLE = "liveness_follower"
VIEW = "liveness_workers"
HEARTBEAT_SESSION = "pgai-worker-heartbeat: "
FORCED_SESSION = "pgai-worker-heartbeat-force: "

_BIGINT_MAX = 9_223_372_036_854_775_807


class Table(NamedTuple):
    name: str
    create: str
    worker_rights: str = ""
    follower_rights: str = "SELECT"


class Function(NamedTuple):
    name: str
    arguments: str
    """The types, as PostgreSQL prints them."""
    create: str


def tables(*, has_vectorizers: bool) -> tuple[Table, ...]:
    """`has_vectorizers`: whether there is a table ai.vectorizer, to which progress belongs."""
    reference = " REFERENCES ai.vectorizer (id) ON DELETE CASCADE" if has_vectorizers else ""
    return (
        Table(
            PROCESS_TABLE,
            """
            CREATE TABLE ai.vectorizer_worker_process (
                id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
                version text NOT NULL,
                started timestamptz NOT NULL DEFAULT now(),
                expected_heartbeat_interval interval NOT NULL,
                last_heartbeat timestamptz NOT NULL DEFAULT now(),
                heartbeat_count bigint NOT NULL DEFAULT 0,
                success_count bigint NOT NULL DEFAULT 0,
                error_count bigint NOT NULL DEFAULT 0,
                last_error_at timestamptz,
                last_error_message text,
                said_goodbye boolean NOT NULL DEFAULT false
            );
            CREATE INDEX ON ai.vectorizer_worker_process (last_heartbeat)""",
            "SELECT, INSERT, UPDATE",
        ),
        Table(
            PROGRESS_TABLE,
            f"""
            CREATE TABLE ai.vectorizer_worker_progress (
                vectorizer_id int4 PRIMARY KEY{reference},
                success_count bigint NOT NULL DEFAULT 0,
                error_count bigint NOT NULL DEFAULT 0,
                last_success_at timestamptz,
                last_success_process_id uuid,
                last_error_at timestamptz,
                last_error_message text,
                last_error_process_id uuid,
                updated_at timestamptz NOT NULL DEFAULT now()
            )""",
            "SELECT, INSERT, UPDATE",
        ),
        Table(
            STATE_TABLE,
            """
            CREATE TABLE ai.liveness_worker_state (
                id uuid PRIMARY KEY,
                state text NOT NULL,
                lease interval,
                verdict text NOT NULL,
                changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
            )""",
            follower_rights="SELECT, INSERT, UPDATE, DELETE",
        ),
        Table(
            FOLLOWER_TABLE,
            """
            CREATE TABLE ai.liveness_follower (
                only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
                session text NOT NULL,
                epoch bigint NOT NULL,
                followed_at timestamptz NOT NULL DEFAULT clock_timestamp()
            )""",
            follower_rights="SELECT, INSERT, UPDATE",
        ),
    )


CREATE_VIEW = """
CREATE VIEW ai.liveness_workers AS
SELECT p.id,
       p.version,
       coalesce(s.state, 'UNKNOWN') AS state,
       s.lease,
       clock_timestamp() - p.last_heartbeat AS last_heartbeat_age,
       coalesce(s.verdict, 'not followed yet') AS verdict,
       s.changed_at,
       (SELECT f.followed_at FROM ai.liveness_follower f) AS followed_at
  FROM ai.vectorizer_worker_process p LEFT JOIN ai.liveness_worker_state s ON s.id = p.id"""


def _sum(column: str, added: str) -> str:
    """A total that grows up to the largest bigint, and never shrinks."""
    return f"least({column}::numeric + greatest(coalesce({added}, 0), 0), {_BIGINT_MAX})::bigint"


_SETTINGS = "LANGUAGE plpgsql SECURITY INVOKER SET search_path TO pg_catalog, pg_temp"

FUNCTIONS = (
    Function(
        "_worker_start",
        "text, interval",
        f"""
        CREATE OR REPLACE FUNCTION ai._worker_start(version text, expected_heartbeat_interval interval)
        RETURNS uuid {_SETTINGS} AS $$
        DECLARE
            worker_id uuid;
        BEGIN
            INSERT INTO ai.vectorizer_worker_process (version, started, expected_heartbeat_interval, last_heartbeat)
            VALUES (coalesce(version, ''), clock_timestamp(), coalesce(expected_heartbeat_interval, '0'), clock_timestamp())
            RETURNING id INTO worker_id;
            RETURN worker_id;
        END;
        $$""",
    ),
    Function(
        "_worker_heartbeat",
        "uuid, bigint, bigint, text",
        f"""
        CREATE OR REPLACE FUNCTION ai._worker_heartbeat(
            worker_id uuid,
            num_successes_since_last_heartbeat bigint,
            num_errors_since_last_heartbeat bigint,
            error_message text
        ) RETURNS void {_SETTINGS} AS $$
        DECLARE
            heartbeat_timestamp timestamptz = clock_timestamp();
        BEGIN
            UPDATE ai.vectorizer_worker_process SET
                last_heartbeat = heartbeat_timestamp,
                heartbeat_count = heartbeat_count + 1,
                success_count = {_sum("success_count", "num_successes_since_last_heartbeat")},
                error_count = {_sum("error_count", "num_errors_since_last_heartbeat")},
                last_error_message = coalesce(error_message, last_error_message),
                last_error_at = CASE WHEN error_message IS NOT NULL THEN heartbeat_timestamp ELSE last_error_at END,
                -- The last heartbeat of an orderly end comes on a connection with this name.
                said_goodbye = current_setting('application_name') LIKE '{FORCED_SESSION}%'
            WHERE id = worker_id;
        END;
        $$""",
    ),
    Function(
        "_worker_progress",
        "uuid, integer, bigint, text",
        f"""
        CREATE OR REPLACE FUNCTION ai._worker_progress(
            worker_id uuid,
            worker_vectorizer_id int4,
            num_successes bigint,
            error_message text
        ) RETURNS void {_SETTINGS} AS $$
        DECLARE
            progress_timestamp timestamptz = clock_timestamp();
        BEGIN
            IF worker_vectorizer_id IS NULL THEN
                RETURN;
            END IF;
            INSERT INTO ai.vectorizer_worker_progress AS unit (
                vectorizer_id, success_count, error_count,
                last_success_at, last_success_process_id,
                last_error_at, last_error_message, last_error_process_id, updated_at
            ) VALUES (
                worker_vectorizer_id,
                greatest(coalesce(num_successes, 0), 0),
                CASE WHEN error_message IS NULL THEN 0 ELSE 1 END,
                CASE WHEN error_message IS NULL THEN progress_timestamp END,
                CASE WHEN error_message IS NULL THEN worker_id END,
                CASE WHEN error_message IS NOT NULL THEN progress_timestamp END,
                error_message,
                CASE WHEN error_message IS NOT NULL THEN worker_id END,
                progress_timestamp
            )
            ON CONFLICT (vectorizer_id) DO UPDATE SET
                success_count = {_sum("unit.success_count", "EXCLUDED.success_count")},
                error_count = {_sum("unit.error_count", "EXCLUDED.error_count")},
                last_success_at = coalesce(EXCLUDED.last_success_at, unit.last_success_at),
                last_success_process_id = coalesce(EXCLUDED.last_success_process_id, unit.last_success_process_id),
                last_error_at = coalesce(EXCLUDED.last_error_at, unit.last_error_at),
                last_error_message = coalesce(EXCLUDED.last_error_message, unit.last_error_message),
                last_error_process_id = coalesce(EXCLUDED.last_error_process_id, unit.last_error_process_id),
                updated_at = progress_timestamp;
        EXCEPTION WHEN foreign_key_violation THEN
            NULL;  -- the vectorizer has been dropped
        END;
        $$""",
    ),
)
