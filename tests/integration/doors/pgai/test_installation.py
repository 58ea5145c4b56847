"""`liveness pgai`: what it puts into a user's database, what it leaves alone, and what it says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result

from liveness.cli import main
from liveness.doors.pgai.connection import CannotConnect, Refused
from liveness.doors.pgai.installation import (
    Conflict,
    ForeignObjects,
    Kind,
    NotOurs,
    RecentWorkers,
    UnknownRole,
    install,
    read_status,
    uninstall,
)
from tests.databases import PostgresServer
from tests.free_ports import free_port
from tests.integration.doors.pgai.stock import STOCK_FUNCTIONS, STOCK_TABLES

OVERLOADS = """
SELECT proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
 WHERE pronamespace = to_regnamespace('ai') ORDER BY 1"""


async def run(dsn: str, statement: str, *values: object) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await (connection.fetch(statement, *values) if values else connection.execute(statement))
    finally:
        await connection.close()


async def column(dsn: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def everything(dsn: str) -> list[Any]:
    """All of the schema `ai`, with definitions, comments and rights."""
    return await column(
        dsn,
        """
        SELECT concat_ws('|', 'table', c.relname, c.relkind, c.relacl::text, obj_description(c.oid, 'pg_class'),
            (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
               FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))
          FROM pg_class c WHERE c.relnamespace = to_regnamespace('ai')
        UNION ALL
        SELECT concat_ws('|', 'function', p.oid::regprocedure::text, p.proacl::text, md5(p.prosrc), obj_description(p.oid, 'pg_proc'))
          FROM pg_proc p WHERE p.pronamespace = to_regnamespace('ai')
        UNION ALL
        SELECT concat_ws('|', 'schema', nspacl::text, obj_description(oid, 'pg_namespace')) FROM pg_namespace WHERE nspname = 'ai'
        ORDER BY 1""",
    )


async def test_install_creates_each_function_once_and_again_changes_nothing(dsn: str) -> None:
    assert (await read_status(dsn)).kind is Kind.NONE
    await asyncio.gather(*(install(dsn) for _ in range(3)))
    assert await column(dsn, OVERLOADS) == [
        "_worker_heartbeat(uuid, bigint, bigint, text)",
        "_worker_progress(uuid, integer, bigint, text)",
        "_worker_start(text, interval)",
    ]
    before = await everything(dsn)
    assert (await install(dsn)).kind is Kind.LIVENESS
    assert await everything(dsn) == before
    assert await uninstall(dsn) != ()
    assert await everything(dsn) == [], "the schema, too, was created by the installation"
    assert await uninstall(dsn) == ()


async def test_a_schema_that_was_there_stays(dsn: str) -> None:
    await run(dsn, "CREATE SCHEMA ai; CREATE TABLE ai.vectorizer (id int PRIMARY KEY)")
    before = await everything(dsn)
    await install(dsn)
    await uninstall(dsn)
    assert await everything(dsn) == before


async def test_a_role_gets_what_workers_need_and_nobody_else_anything(
    dsn: str, postgres: PostgresServer
) -> None:
    worker, other, follower = (
        f"{name} {dsn.rpartition('_')[2]}" for name in ("the worker", "stranger", "follower")
    )
    await run(dsn, f'CREATE ROLE "{worker}"; CREATE ROLE "{other}" LOGIN; CREATE ROLE "{follower}"')
    try:
        assert (await install(dsn, [worker], [follower])).grants == (f'"{worker}"',)
        start = "DO $$ BEGIN PERFORM ai._worker_heartbeat(ai._worker_start('1', '1s'), 1, 0, NULL); PERFORM ai._worker_progress(NULL, 1, 1, 'x'); END $$"
        await run(dsn, f'SET ROLE "{worker}"; {start}')
        for role in (other, follower):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await run(dsn, f'SET ROLE "{role}"; {start}')
        for forbidden in ("DELETE FROM ai.vectorizer_worker_process", "SELECT FROM ai.liveness_worker_state"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await run(dsn, f'SET ROLE "{worker}"; {forbidden}')
        await run(
            dsn,
            f'SET ROLE "{follower}"; SELECT FROM ai.liveness_workers; DELETE FROM ai.liveness_worker_state',
        )
        with pytest.raises(Refused, match=r"must be owner|permission denied"):
            await install(dsn.replace("postgres@", f"{other.replace(' ', '%20')}@"))
    finally:
        await uninstall(dsn, force=True)
        await run(dsn, f'DROP ROLE "{worker}"; DROP ROLE "{other}"; DROP ROLE "{follower}"')


async def test_a_stock_installation_stays_as_it_is(dsn: str) -> None:
    await run(dsn, STOCK_TABLES + STOCK_FUNCTIONS)
    before = await everything(dsn)
    assert (await install(dsn)).kind is Kind.STOCK
    assert await everything(dsn) == before
    with pytest.raises(NotOurs, match=r"ai\._worker_heartbeat\(uuid, integer, integer, text\).* stay"):
        await uninstall(dsn, force=True)
    assert await everything(dsn) == before


async def test_an_incomplete_installation_is_refused_with_what_is_missing(dsn: str) -> None:
    await run(dsn, STOCK_TABLES)
    before = await everything(dsn)
    with pytest.raises(
        ForeignObjects,
        match=r"has ai\.vectorizer_worker_process, .* lacks _worker_heartbeat, _worker_progress",
    ):
        await install(dsn)
    await run(
        dsn, "CREATE FUNCTION ai._worker_heartbeat(uuid, int, int, text) RETURNS void LANGUAGE sql AS ''"
    )
    assert await everything(dsn) != before
    assert (await read_status(dsn)).kind is Kind.INCOMPLETE


async def test_a_second_overload_beside_ours_is_named(dsn: str) -> None:
    await install(dsn)
    await run(
        dsn, "CREATE FUNCTION ai._worker_heartbeat(uuid, int, int, text) RETURNS void LANGUAGE sql AS ''"
    )
    with pytest.raises(
        Conflict, match=r"there are ai\._worker_heartbeat\(uuid, integer, integer, text\), so that"
    ):
        await install(dsn)
    assert (await read_status(dsn)).kind is Kind.CONFLICT


async def test_uninstall_waits_for_workers_that_are_there(dsn: str) -> None:
    await install(dsn)
    await run(dsn, "SELECT ai._worker_start('1', '5 minutes')")
    before = await everything(dsn)
    with pytest.raises(RecentWorkers, match="1 of the workers sent heartbeats"):
        await uninstall(dsn)
    assert await everything(dsn) == before
    await run(dsn, "UPDATE ai.vectorizer_worker_process SET last_heartbeat = now() - interval '1 hour'")
    await uninstall(dsn)
    await install(dsn)
    await run(
        dsn,
        "SELECT ai._worker_start('1', '5 minutes'); CREATE VIEW mine AS SELECT * FROM ai.vectorizer_worker_process",
    )
    with pytest.raises(Refused, match="other objects depend on it; nothing was changed"):
        await uninstall(dsn, force=True)
    await run(dsn, "DROP VIEW mine")
    await uninstall(dsn, force=True)


async def test_an_unknown_role_changes_nothing(dsn: str) -> None:
    with pytest.raises(UnknownRole, match="There is no role nobody here in this database"):
        await install(dsn, ["nobody here"])
    assert await everything(dsn) == []


async def test_a_database_that_cannot_be_reached_is_named_without_its_password(dsn: str) -> None:
    port = free_port()
    cases = {
        f"postgresql://ann:hunter2@127.0.0.1:{port}/app": f"postgresql://ann@127.0.0.1:{port}/app: ",
        dsn + "_none": "does not exist",
        "service=none": "service=none: ",
        "postgresql://ann:hunter2@127.0.0.1:1/app?sslmode=what": "sslmode",
    }
    for wrong, expected in cases.items():
        with pytest.raises(CannotConnect) as raised:
            await install(wrong)
        assert expected in str(raised.value)
        assert "hunter2" not in str(raised.value)
        assert "\n" not in str(raised.value)


class TestFunctions:
    """The clients send small integers as smallint, no error as an unknown NULL, and stop for good at any exception."""

    async def test_arguments_of_the_clients_types_find_their_function(self, dsn: str) -> None:
        await install(dsn)
        await run(
            dsn,
            """
            DO $$ DECLARE id uuid; BEGIN
                id = ai._worker_start('0.12.1'::text, '5 minutes'::interval);
                PERFORM ai._worker_heartbeat(id, 1::smallint, 2::smallint, NULL);
                PERFORM ai._worker_heartbeat(id, 1::int, 0::bigint, 'x');
                PERFORM ai._worker_progress(id, 3::smallint, 4::smallint, NULL);
                PERFORM ai._worker_progress(id, 3::int, 0, 'x');
            END $$""",
        )
        assert await column(
            dsn, "SELECT (heartbeat_count, success_count, error_count) FROM ai.vectorizer_worker_process"
        ) == [(2, 2, 2)]
        assert await column(
            dsn, "SELECT (success_count, error_count, last_error_message) FROM ai.vectorizer_worker_progress"
        ) == [(4, 1, "x")]

    async def test_no_argument_makes_them_fail(self, dsn: str) -> None:
        await run(
            dsn,
            "CREATE SCHEMA ai; CREATE TABLE ai.vectorizer (id int PRIMARY KEY); INSERT INTO ai.vectorizer VALUES (1)",
        )
        await install(dsn)
        await run(
            dsn,
            """
            DO $$ DECLARE id uuid; BEGIN
                id = ai._worker_start(NULL, NULL);
                PERFORM ai._worker_heartbeat(gen_random_uuid(), 1, 1, NULL);
                PERFORM ai._worker_heartbeat(NULL, 1, 1, 'x');
                PERFORM ai._worker_heartbeat(id, NULL, NULL, NULL);
                PERFORM ai._worker_heartbeat(id, -5, -5, NULL);
                PERFORM ai._worker_heartbeat(id, 9223372036854775807, 9223372036854775807, '');
                PERFORM ai._worker_heartbeat(id, 9223372036854775807, 1, NULL);
                PERFORM ai._worker_progress(NULL, 1, NULL, NULL);
                PERFORM ai._worker_progress(id, 1, 9223372036854775807, NULL);
                PERFORM ai._worker_progress(id, 1, 9223372036854775807, NULL);
                PERFORM ai._worker_progress(id, 404, 1, NULL);
                PERFORM ai._worker_progress(id, NULL, 1, NULL);
            END $$""",
        )
        counted = await column(dsn, "SELECT (success_count, error_count) FROM ai.vectorizer_worker_process")
        assert counted == [(2**63 - 1, 2**63 - 1)]
        assert await column(dsn, "SELECT vectorizer_id FROM ai.vectorizer_worker_progress") == [1]
        await run(dsn, "DELETE FROM ai.vectorizer")
        assert await column(dsn, "SELECT vectorizer_id FROM ai.vectorizer_worker_progress") == []

    async def test_concurrent_calls_lose_nothing(self, dsn: str) -> None:
        await install(dsn)
        (id,) = await column(dsn, "SELECT ai._worker_start('1', '1s')")
        connections = await asyncio.gather(*(asyncpg.connect(dsn) for _ in range(8)))
        try:
            for _ in range(10):
                await asyncio.gather(
                    *(
                        each.execute("SELECT ai._worker_heartbeat($1, 1, 1, 'x')", id)
                        for each in connections[:4]
                    ),
                    *(
                        each.execute("SELECT ai._worker_progress($1, 7, 2, NULL)", id)
                        for each in connections[4:]
                    ),
                )
        finally:
            for each in connections:
                await each.close()
        assert await column(
            dsn, "SELECT (heartbeat_count, success_count) FROM ai.vectorizer_worker_process"
        ) == [(40, 40)]
        assert await column(dsn, "SELECT success_count FROM ai.vectorizer_worker_progress") == [80]


class TestCommand:
    def command(self, *arguments: str, **environ: str) -> Result:
        return CliRunner(env=environ).invoke(main, ["pgai", *arguments], prog_name="liveness")

    def test_it_installs_tells_and_removes(self, dsn: str) -> None:
        assert "nothing is installed" in self.command("status", LIVENESS_PGAI_DSN=dsn).output
        done = self.command("install", "--dsn", dsn, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["kind"] == "liveness"
        shown = self.command("status", "--dsn", dsn).output
        assert "installed by liveness" in shown
        assert "0, of which 0 have sent a heartbeat recently" in shown
        assert "removed ai._worker_heartbeat, " in self.command("uninstall", "--dsn", dsn).output
        assert "Nothing is installed" in self.command("uninstall", "--dsn", dsn).output

    def test_what_is_wrong_is_one_sentence(self, dsn: str) -> None:
        for arguments, code, expected in (
            (("install",), 2, "no database is given; set --dsn or LIVENESS_PGAI_DSN to postgresql://"),
            (("install", "--dsn", "mysql://root:hunter2@db/app"), 2, "the database must be postgresql://"),
            (("install", "--dsn", dsn, "--grant", "nobody"), 1, "There is no role nobody in this database"),
        ):
            done = self.command(*arguments)
            assert done.exit_code == code
            assert done.output.startswith("error: ")
            assert expected in done.output
            assert "hunter2" not in done.output
            assert len(done.output.splitlines()) == 1
