"""A PostgreSQL database that was restored by PostgreSQL's own tools: noticed at the start, refused while nodes serve it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from liveness.cli.doctor_postgres import run_checks
from liveness.clock import ManualClock
from liveness.engine.restore import (
    RestoreIncomplete,
    RestoreSummary,
    begin_new_history,
    wait_until_nodes_are_silent,
)
from liveness.store.errors import DatabaseReplaced, NodeServes, RestoredMeanwhile, RestoreUnfinished
from liveness.store.node_registry import NodeState
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from tests.databases import PostgresServer, StoreDatabase
from tests.integration.backup.test_backup import no_progress
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import ACTIVE, INACTIVE, SHARDS, ServerHarness
from tests.integration.store.faulty_store import Fault, FaultyStore

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
async def harness(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[ServerHarness]:
    harness = await ServerHarness(postgres.url(postgres_database)).start()
    await harness.beat("w", bound_activities=[activity("held")])
    yield harness
    await harness.stop()


async def dump_without_nodes(url: str) -> Rows:
    rows = await StoreDatabase("postgresql", lambda: PostgresDatabase(url)).dump()
    del rows["nodes"]
    return rows


async def finish_restore(
    url: str, *, store: SqlStore | None = None, clock: ManualClock | None = None
) -> RestoreSummary:
    """What `liveness restore --already-restored` does."""
    store = store or SqlStore(PostgresDatabase(url))
    clock = clock or ManualClock()
    try:
        silent = await moving(clock, wait_until_nodes_are_silent(store, clock, no_progress))
        await store.open(SHARDS, "tests", is_restore=True)
        return await begin_new_history(store, SHARDS, clock, 0, no_progress, silent)
    finally:
        await store.close()


async def moving(clock: ManualClock, work: Any) -> Any:
    """Let time pass on `clock` until `work` is done."""
    working = asyncio.ensure_future(work)
    while not working.done():
        clock.move(100)
        await asyncio.sleep(0)
    return await working


# -- while nodes serve


async def test_a_database_that_a_node_serves_is_refused_and_left_as_it_is(harness: ServerHarness) -> None:
    before = await dump_without_nodes(harness.url)
    store, clock = SqlStore(PostgresDatabase(harness.url)), ManualClock()
    waiting = asyncio.ensure_future(wait_until_nodes_are_silent(store, clock, no_progress))
    while not waiting.done():
        await harness.server.membership.refresh()
        clock.move(100)
        await asyncio.sleep(0)
    with pytest.raises(NodeServes, match=r"Nothing was changed: node .* serves this database"):
        await waiting
    await store.close()
    assert await dump_without_nodes(harness.url) == before
    await harness.advance(1_000)
    assert (await harness.describe("w")).state == ACTIVE


@pytest.mark.parametrize("sign_of_life", ["it beats", "another node starts"])
async def test_a_node_that_shows_life_before_the_first_change_stops_the_restore(
    harness: ServerHarness, sign_of_life: str
) -> None:
    store, clock = SqlStore(PostgresDatabase(harness.url)), ManualClock()
    silent = await moving(clock, wait_until_nodes_are_silent(store, clock, no_progress))
    await store.open(SHARDS, "tests", is_restore=True)
    other = ServerHarness(harness.url)
    if sign_of_life == "it beats":
        await harness.server.membership.refresh()
    else:
        await other.start()
    before = await dump_without_nodes(harness.url)
    with pytest.raises(NodeServes):
        await begin_new_history(store, SHARDS, clock, 0, no_progress, silent)
    assert await dump_without_nodes(harness.url) == before
    await store.close()
    await other.stop()


async def test_nodes_in_the_registry_of_a_backup_are_waited_for_and_removed(harness: ServerHarness) -> None:
    """The harness drives its server by hand, so this one's lease ends as if its process had been killed."""
    clock = ManualClock()
    restored = await finish_restore(harness.url, clock=clock)
    assert clock.monotonic_ms() >= 4_000, "the lease of a node"
    assert restored[:2] == (1, 1)
    store = SqlStore(PostgresDatabase(harness.url))
    assert await store.registered_nodes() == ()
    await store.close()


async def test_a_node_that_slept_through_a_restore_gives_up_its_place(harness: ServerHarness) -> None:
    server = harness.server
    was_ready = server.membership.is_ready
    await finish_restore(harness.url)
    await server.membership.refresh()
    assert (was_ready, server.membership.is_ready) == (True, False)
    await server.membership.refresh()
    [row] = await server.store.registered_nodes()
    assert row.state is NodeState.LEAVING
    for shard in server.node.shards():
        server.node.committer.mark_dirty(shard)
    await server.node.barrier().wait()
    assert not server.node.shards()
    with pytest.raises(RestoredMeanwhile, match="restart the node"):
        await server.node.open()


# -- all or nothing


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST])
async def test_no_server_starts_on_a_half_done_restore_until_it_is_repeated(
    harness: ServerHarness, fault: Fault
) -> None:
    for number in range(20):
        await harness.beat(f"w{number}")
    await harness.stop()
    faulty = FaultyStore(PostgresDatabase(harness.url))
    faulty.faults.extend([Fault.NONE, fault])
    with pytest.raises(RestoreIncomplete, match="The restore has begun and has not ended: a commit failed"):
        await finish_restore(harness.url, store=faulty)
    with pytest.raises(RestoreUnfinished, match="run it again"):
        await harness.start()
    await finish_restore(harness.url)
    await harness.start()
    for number in range(20):
        assert (await harness.describe(f"w{number}")).state == INACTIVE


async def test_the_first_of_two_restores_at_once_does_not_claim_to_be_done(harness: ServerHarness) -> None:
    await harness.stop()
    first = SqlStore(PostgresDatabase(harness.url))
    await first.open(SHARDS, "tests", is_restore=True)
    await first.begin_restore({})
    second = SqlStore(PostgresDatabase(harness.url))
    await second.open(SHARDS, "tests", is_restore=True)
    await second.begin_restore({})
    with pytest.raises(RestoreUnfinished):
        await first.finish_restore()
    await first.close()
    await second.close()
    with pytest.raises(RestoreUnfinished):
        await harness.start()


# -- noticed at the start


@pytest.fixture(scope="module")
def other_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def run(postgres: PostgresServer, program: str, *arguments: str | Path) -> None:
    subprocess.run([postgres.programs / program, *arguments], check=True, capture_output=True, text=True)


def restore_to_another_cluster(
    postgres: PostgresServer, other: PostgresServer, database: str, dump: Path
) -> str:
    target = other.create_database()
    run(other, "pg_restore", "-d", other.url(target), dump)
    return other.url(target)


def restore_to_another_database(
    postgres: PostgresServer, other: PostgresServer, database: str, dump: Path
) -> str:
    target = postgres.create_database()
    run(postgres, "pg_restore", "-d", postgres.url(target), dump)
    return postgres.url(target)


def restore_over_the_tables(
    postgres: PostgresServer, other: PostgresServer, database: str, dump: Path
) -> str:
    run(postgres, "pg_restore", "--clean", "-d", postgres.url(database), dump)
    return postgres.url(database)


def restore_the_rows_only(postgres: PostgresServer, other: PostgresServer, database: str, dump: Path) -> str:
    tables = postgres.execute(
        "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'public'", database
    )
    postgres.execute(f"TRUNCATE {tables}", database)
    run(postgres, "pg_restore", "--data-only", "-d", postgres.url(database), dump)
    return postgres.url(database)


def copy_as_template(postgres: PostgresServer, other: PostgresServer, database: str, dump: Path) -> str:
    return postgres.url(postgres.create_database(database))


WAYS = {
    restore_to_another_cluster: "written in another PostgreSQL cluster",
    restore_to_another_database: "written in another database",
    restore_over_the_tables: "rows were written anew",
    restore_the_rows_only: "rows were written anew",
    copy_as_template: "written in another database",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_restored_database_is_not_served_before_its_leases_have_ended(
    harness: ServerHarness,
    postgres: PostgresServer,
    other_postgres: PostgresServer,
    postgres_database: str,
    tmp_path: Path,
    way: Any,
) -> None:
    dump = tmp_path / "dump"
    run(postgres, "pg_dump", "-Fc", "-f", dump, harness.url)
    # Forgotten by the restore: lease epoch 2 would be granted again.
    epoch = (await harness.beat("w", session_id="second")).lease_epoch
    await harness.stop()
    restored = ServerHarness(way(postgres, other_postgres, postgres_database, dump))
    before = await dump_without_nodes(restored.url)
    with pytest.raises(DatabaseReplaced, match=f"{WAYS[way]}.*`liveness restore --already-restored`"):
        await restored.start()
    assert await dump_without_nodes(restored.url) == before
    found = {check.check: check for check in await asyncio.to_thread(list, run_checks(restored.url, SHARDS))}
    assert WAYS[way] in found["identity"].saw
    await finish_restore(restored.url)
    await restored.start()
    assert (await restored.beat("w", session_id="third")).lease_epoch > epoch
    await restored.restart()
    await restored.stop()


async def test_a_database_that_was_moved_complete_keeps_its_leases(
    harness: ServerHarness,
    postgres: PostgresServer,
    other_postgres: PostgresServer,
    postgres_database: str,
    tmp_path: Path,
) -> None:
    await harness.stop()
    run(postgres, "pg_dump", "-Fc", "-f", tmp_path / "dump", harness.url)
    moved = ServerHarness(
        restore_to_another_cluster(postgres, other_postgres, postgres_database, tmp_path / "dump")
    )
    with pytest.raises(DatabaseReplaced, match="`liveness restore --moved` if no commit is missing"):
        await moved.start()
    store = SqlStore(PostgresDatabase(moved.url))
    await store.open(SHARDS, "tests", is_restore=True)
    await store.accept_move({})
    await store.close()
    await moved.start()
    assert (await moved.describe("w")).state == ACTIVE
    await moved.stop()


@pytest.mark.parametrize(
    "statement", ["VACUUM FULL meta", "VACUUM FREEZE meta", "REINDEX TABLE meta", "SELECT 1"]
)
async def test_maintenance_and_a_restart_of_postgresql_are_no_restore(
    harness: ServerHarness, postgres: PostgresServer, postgres_database: str, statement: str
) -> None:
    await harness.stop()
    postgres.execute(statement, postgres_database)
    if statement == "SELECT 1":
        postgres.restart()
    await harness.start()


async def test_a_role_that_may_not_read_the_control_file_is_served_with_the_other_checks(
    postgres: PostgresServer, postgres_database: str
) -> None:
    postgres.execute("CREATE ROLE modest LOGIN", postgres_database)
    try:
        postgres.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", postgres_database)
        postgres.execute(f"ALTER DATABASE {postgres_database} OWNER TO modest")
        url = postgres.url(postgres_database).replace("postgres@", "modest@")
        harness = await ServerHarness(url).start()
        await harness.restart()
        await harness.stop()
        copy = postgres.create_database(postgres_database)
        postgres.execute(f"ALTER DATABASE {copy} OWNER TO modest")
        with pytest.raises(DatabaseReplaced):
            await ServerHarness(postgres.url(copy).replace("postgres@", "modest@")).start()
        postgres.drop_database(copy)
    finally:
        postgres.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC", postgres_database)
        postgres.execute(f"ALTER DATABASE {postgres_database} OWNER TO postgres")
        postgres.execute("REASSIGN OWNED BY modest TO postgres", postgres_database)
        postgres.execute("DROP ROLE modest", postgres_database)


async def test_a_promoted_standby_is_served_with_a_warning() -> None:
    """A fail-over and a restore to a point in time look the same, and only one of them loses commits."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with PostgresServer(settings={"wal_level": "replica"}) as primary:
        name = primary.create_database()
        harness = await ServerHarness(primary.url(name)).start()
        await harness.stop()
        with PostgresServer(standby_of=primary) as standby:
            primary.stop()
            standby.promote()
            moved = ServerHarness(standby.url(name))
            with capture_logs() as logs:
                await moved.start()
            assert [entry["log_level"] for entry in logs if "promoted" in entry["event"]] == ["warning"]
            with capture_logs() as logs:
                await moved.restart()
            assert not [entry for entry in logs if "promoted" in entry["event"]]
            await moved.stop()
