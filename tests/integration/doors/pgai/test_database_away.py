"""While the database of pgai cannot be read, and after it has restarted, silence ends no lease."""

from __future__ import annotations

from tests.databases import PostgresServer
from tests.integration.doors.pgai.conftest import Stage


async def test_no_lease_ends_while_the_database_is_away(stage: Stage, postgres: PostgresServer) -> None:
    id, silent = await stage.start_worker("2 seconds"), await stage.start_worker("2 seconds")
    session = await stage.heartbeat_session(id)
    await stage.beat(id, 1)
    await stage.turn(3)
    await session.close()  # the database ends sessions just before it goes
    await stage.turn(2)
    postgres.stop()
    try:
        await stage.turn(30, ms=2_000)
        assert stage.state(id) == stage.state(silent) == "ACTIVE"
        await stage.replace_follower()  # another one knows the workers without having read them
        await stage.turn(30, ms=2_000)
        assert stage.state(id) == stage.state(silent) == "ACTIVE"
    finally:
        postgres.start()
    await stage.beat(id, 1)
    await stage.turn(3)
    assert stage.counts(id) == (2, 0)
    assert not stage.follower.is_silence_counted(silent), (
        "its heartbeats may have ended with the old sessions"
    )
    assert stage.follower.is_silence_counted(id)
    await stage.turn(20)
    assert stage.state(id) != "ACTIVE", "it was heard of after the restart"
    assert stage.state(silent) == "ACTIVE"


async def test_after_the_allowance_silence_counts_again(stage: Stage, postgres: PostgresServer) -> None:
    id = await stage.start_worker("1 second")
    await stage.replace_follower()
    stage.follower = stage.new_follower(restart_allowance_ms=1)
    await stage.turn(3)
    postgres.restart()
    await stage.turn(10)
    assert stage.state(id) != "ACTIVE"


async def test_a_follower_that_finds_no_tables_waits_for_them(stage: Stage) -> None:
    await stage.run("ALTER SCHEMA ai RENAME TO hidden")
    await stage.turn(2)
    assert not stage.follower.is_following
    await stage.run("ALTER SCHEMA hidden RENAME TO ai")
    id = await stage.start_worker()
    await stage.turn(3)
    assert stage.state(id) == "ACTIVE"
