"""Rows in pgai's tables become workers of liveness: leases, counters, goodbyes and progress."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import grpc
import pytest

from liveness.doors.pgai import installation
from liveness.doors.pgai.database import UserDatabase
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATE_INACTIVE,
)
from tests.integration.doors.pgai.conftest import Stage
from tests.integration.doors.pgai.stock import STOCK_FUNCTIONS, STOCK_TABLES


async def test_a_worker_appears_and_each_heartbeat_renews_its_lease(stage: Stage) -> None:
    id = await stage.start_worker("20 seconds")
    await stage.turn(3)
    worker = stage.describe(id)
    assert worker.state == WORKER_STATE_ACTIVE
    assert worker.granted_lease_duration.ToMilliseconds() == 60_000
    assert worker.sdk_name == "pgai"
    assert worker.sdk_version == "0.12.1"
    before = worker.lease_deadline.ToMilliseconds()
    await stage.turn(4)
    assert stage.describe(id).lease_deadline.ToMilliseconds() == before, "nothing was heard of it"
    await stage.beat(id)
    await stage.turn()
    assert stage.describe(id).lease_deadline.ToMilliseconds() > before


async def test_counters_are_the_differences_between_readings(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.turn(2)
    await stage.beat(id, 3, 1, "no such model")
    await stage.beat(id, 2)
    await stage.turn(3)
    assert stage.counts(id) == (5, 1)
    assert stage.describe(id).last_error == "no such model"
    await stage.beat(id, 4, 2, "again")
    await stage.turn(2)
    assert stage.counts(id) == (9, 3)


async def test_a_silent_worker_is_inactive_after_three_intervals(stage: Stage) -> None:
    id = await stage.start_worker("2 seconds")
    await stage.beat(id)
    await stage.turn(2)
    await stage.turn(10)
    assert stage.state(id) == "ACTIVE"
    await stage.turn(4)
    worker = stage.describe(id)
    assert worker.state == WORKER_STATE_INACTIVE
    assert worker.inactive_reason == INACTIVE_REASON_LEASE_EXPIRED


async def test_a_long_interval_gets_a_lease_of_its_own_length(stage: Stage) -> None:
    id = await stage.start_worker("1 minute")
    await stage.beat(id)
    await stage.turn(2)
    await stage.turn(175, ms=1_000)
    assert stage.state(id) == "ACTIVE"
    await stage.turn(8, ms=1_000)
    assert stage.describe(id).inactive_reason == INACTIVE_REASON_LEASE_EXPIRED
    await stage.beat(id)
    await stage.turn(2)
    assert stage.state(id) == "ACTIVE"


async def test_the_last_heartbeat_of_an_orderly_end_is_a_goodbye(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.beat(id)
    await stage.turn(2)
    forced = await stage.connect("pgai-worker-heartbeat-force: " + id.partition("-")[0])
    await forced.execute("SELECT ai._worker_heartbeat($1, 7, 0, NULL)", id)
    await forced.close()
    await stage.turn(2)
    assert stage.describe(id).inactive_reason == INACTIVE_REASON_SHUTDOWN
    assert stage.counts(id) == (7, 0)


async def test_a_worker_whose_session_ends_has_two_seconds(stage: Stage) -> None:
    id = await stage.start_worker("5 minutes")
    session = await stage.heartbeat_session(id)
    await session.execute("SELECT ai._worker_heartbeat($1, 1, 0, NULL)", id)
    await stage.turn(4)
    await session.close()
    await stage.turn(3)
    assert stage.state(id) == "ACTIVE"
    await stage.turn(6)
    assert stage.describe(id).inactive_reason == INACTIVE_REASON_LEASE_EXPIRED


async def test_a_session_that_comes_back_ends_no_lease(stage: Stage) -> None:
    id = await stage.start_worker("5 minutes")
    session = await stage.heartbeat_session(id)
    await stage.beat(id)
    await stage.turn(4)
    await session.close()
    await stage.turn(3)
    await stage.heartbeat_session(id)
    await stage.beat(id)
    await stage.turn(12)
    assert stage.state(id) == "ACTIVE"


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_new_follower_counts_what_came_meanwhile_once(stage: Stage, orderly: bool) -> None:
    id = await stage.start_worker()
    await stage.beat(id, 3, 1, "x")
    await stage.turn(3)
    await stage.beat(id, 4)
    await stage.replace_follower(orderly=orderly)
    await stage.beat(id, 5, 1, "y")
    await stage.turn(3 if orderly else 22)  # until the lease of the other one is over
    assert stage.counts(id) == (12, 2)
    await stage.beat(id, 1)
    await stage.turn(2)
    assert stage.counts(id) == (13, 2)
    assert stage.state(id) == "ACTIVE"


async def test_of_two_followers_one_follows(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.turn(3)
    other = stage.new_follower()
    try:
        await stage.beat(id, 5)
        await asyncio.gather(stage.follower.turn(), other.turn())
        assert [stage.follower.is_following, other.is_following] == [True, False]
        assert stage.counts(id) == (5, 0)
        await stage.follower.stop()
        await stage.beat(id, 2)
        for _ in range(3):
            await other.turn()
        assert [other.is_following] == [True]
        assert stage.counts(id) == (7, 0)
    finally:
        await other.stop()
        stage.follower = stage.new_follower()


async def test_a_follower_that_was_replaced_writes_nothing(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.beat(id, 1)
    await stage.turn(3)
    paused, stage.follower = stage.follower, stage.new_follower()
    await stage.turn(22)
    assert stage.follower.is_following
    await stage.beat(id, 10)
    await paused.turn()  # it wakes up, reads, and finds that it has been replaced
    assert not paused.is_following
    await stage.turn(2)
    assert stage.counts(id) == (11, 0)
    await paused.stop()


async def test_rows_of_the_past_are_passed_over(stage: Stage) -> None:
    old, known = await stage.start_worker(), await stage.start_worker()
    await stage.run(
        "UPDATE ai.vectorizer_worker_process SET last_heartbeat = now() - interval '1 day' WHERE id = $1", old
    )
    await stage.turn(3)
    assert old not in stage.worker_keys()
    assert known in stage.worker_keys()
    await stage.beat(old, 3)
    await stage.turn(2)
    assert stage.counts(old) == (3, 0), "it lives"


async def test_what_a_worker_counted_before_it_died_unseen_is_counted(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.turn(3)
    await stage.follower.stop()
    await stage.beat(id, 5)
    await stage.run("UPDATE ai.vectorizer_worker_process SET last_heartbeat = now() - interval '1 hour'")
    await asyncio.to_thread(stage.local.advance, 40)
    assert stage.state(id) != "ACTIVE"
    stage.follower = stage.new_follower(restart_allowance_ms=0)
    await stage.turn(3)
    assert stage.counts(id) == (5, 0)
    await stage.turn(4)
    assert stage.describe(id).state == WORKER_STATE_INACTIVE


async def test_a_worker_that_was_cleaned_up_begins_a_new_life_without_counting_twice(stage: Stage) -> None:
    stage.clean_up_after(1)
    id = await stage.start_worker()
    await stage.beat(id, 5)
    await stage.turn(3)
    await asyncio.to_thread(stage.local.advance, 40)
    assert stage.describe(id).state == WORKER_STATE_CLEANED_UP
    await stage.replace_follower()
    await stage.beat(id, 2)
    await stage.turn(4)
    worker = stage.describe(id)
    assert worker.state == WORKER_STATE_ACTIVE
    assert worker.successes == 2, "5 were counted in its first life"
    await stage.replace_follower()
    await stage.beat(id, 1)
    await stage.turn(4)
    assert stage.counts(id) == (3, 0)


async def test_a_restored_database_counts_on(stage: Stage) -> None:
    id = await stage.start_worker()
    for _ in range(3):
        await stage.beat(id, 5)
    await stage.turn(3)
    await stage.run("UPDATE ai.vectorizer_worker_process SET heartbeat_count = 1, success_count = 5")
    await stage.turn(3)
    assert stage.counts(id) == (15, 0)
    await stage.beat(id, 4)
    await stage.turn(3)
    assert stage.counts(id) == (19, 0)
    await stage.replace_follower()
    await stage.beat(id, 1)
    await stage.turn(3)
    assert stage.counts(id) == (20, 0)


async def test_progress_is_reported_by_vectorizer(stage: Stage) -> None:
    id = await stage.start_worker()
    await stage.progress(id, 7, 3)
    await stage.progress(id, 7, 2)
    await stage.progress(id, 7, 0, "no such model")
    await stage.turn(3)
    unit = stage.unit("7")
    assert (unit.successes, unit.errors, unit.last_error) == (5, 1, "no such model")
    assert unit.last_success_worker == id
    await stage.replace_follower()
    await stage.progress(id, 7, 4)
    await stage.turn(3)
    assert (stage.unit("7").successes, stage.unit("7").errors) == (9, 1)


async def test_what_was_counted_before_anybody_followed_is_reported_at_once(stage: Stage) -> None:
    other, id = str(uuid4()), await stage.start_worker()
    await stage.run(
        """
        INSERT INTO ai.vectorizer_worker_progress (vectorizer_id, success_count, last_success_at, last_success_process_id,
            error_count, last_error_at, last_error_message, last_error_process_id)
        VALUES (7, 3000000, '2026-01-01', $1, 5000, '2026-01-02', 'no such model', $2),
               (8, 2, '2026-01-02', $1, 1, '2026-01-01', 'once', $1), (9, 0, NULL, NULL, 4, NULL, NULL, NULL)""",
        id,
        other,
    )
    await stage.turn()
    unit = stage.unit("7")
    assert (unit.successes, unit.errors, unit.last_error) == (3_000_000, 5_000, "no such model")
    assert (unit.last_success_worker, unit.last_error_worker) == (id, other)
    assert {unit.unit for unit in stage.failing_units()} == {"7", "9"}
    assert (stage.unit("8").successes, stage.unit("8").errors) == (2, 1)


async def test_a_turn_ends_though_thousands_of_rows_wait(stage: Stage) -> None:
    id = await stage.start_worker("5 minutes")
    await stage.run(
        "INSERT INTO ai.vectorizer_worker_progress (vectorizer_id, success_count, last_success_at) "
        "SELECT n, n, now() FROM generate_series(1, 300) n"
    )
    stage.clock.tick_ms = 100  # as if calls took long
    reported = []
    for turn in range(40):
        await stage.beat(id, 1)
        await stage.turn()
        assert stage.counts(id) == (turn + 1, 0), "heartbeats are heard in every turn"
        reported.append(len(stage.units()))
        if reported[-1] == 300:
            break
    assert reported[0] < 300
    assert {unit.unit: unit.successes for unit in stage.units()} == {str(n): n for n in range(1, 301)}


async def test_progress_proves_that_a_worker_lives(stage: Stage) -> None:
    id = await stage.start_worker("1 second")
    await stage.turn(2)
    for _ in range(5):
        await stage.progress(id, 1, 1)
        await stage.turn(3)
    assert stage.state(id) == "ACTIVE"
    await stage.turn(10)
    assert stage.state(id) != "ACTIVE"


async def test_rows_that_nobody_would_write_do_no_harm(stage: Stage) -> None:
    await stage.run("ALTER TABLE ai.vectorizer_worker_process ALTER version DROP NOT NULL")
    await stage.run(
        """
        INSERT INTO ai.vectorizer_worker_process (version, started, expected_heartbeat_interval, heartbeat_count,
            success_count, error_count, last_error_message, last_heartbeat)
        VALUES (NULL, '-infinity', '-5 days', -3, -7, -9, NULL, now()),
               (repeat(E'x\\n', 5000), 'infinity', '1000000 years', 9223372036854775807, 1, 1, 'x', 'infinity'),
               (E'\\x1b[31m' || repeat(E'\\u20ac', 500), '200000-01-01', '0', 4611686018427387, 9223372036854775807, 9223372036854775807,
                repeat(E'\\u2028\\u20ac', 5000), now())"""
    )
    id = await stage.start_worker()
    await stage.beat(id, 1)
    await stage.turn(4)
    assert stage.counts(id) == (1, 0)
    assert len(stage.worker_keys() - {"door:pgai"}) == 3, "all but the one with too many heartbeats"


async def test_the_view_shows_what_liveness_knows(stage: Stage) -> None:
    alive, silent, gone = [await stage.start_worker("2 seconds") for _ in range(3)]
    await stage.run("SELECT ai._worker_start('later', '5 minutes')")
    await stage.turn(3)
    forced = await stage.connect("pgai-worker-heartbeat-force: " + gone.partition("-")[0])
    await forced.execute("SELECT ai._worker_heartbeat($1, 1, 0, NULL)", gone)
    for _ in range(8):
        await stage.beat(alive)
        await stage.turn(2)
    connection = await stage.connect()
    rows = await connection.fetch(
        "SELECT id::text, state, verdict, lease, last_heartbeat_age FROM ai.liveness_workers"
    )
    shown = {row["id"]: (row["state"], row["verdict"]) for row in rows}
    assert shown[alive] == ("ACTIVE", "alive")
    assert shown[silent] == ("INACTIVE", "silent for three heartbeat intervals")
    assert shown[gone] == ("INACTIVE", "said goodbye")
    assert len(shown) == 4
    followed = await connection.fetchval(
        "SELECT clock_timestamp() - max(followed_at) FROM ai.liveness_workers"
    )
    assert followed.total_seconds() < 60


async def test_a_follower_that_was_replaced_does_not_write_to_the_view(stage: Stage) -> None:
    old, new = UserDatabase(stage.dsn), UserDatabase(stage.dsn)
    try:
        for database in (old, new):
            await database.read(())
        assert await old.write("old", 1, {}, forget=False)
        assert await new.write("new", 2, {}, forget=True)
        assert not await old.write("old", 1, {}, forget=False)
        assert await new.write("new", 2, {}, forget=False)
    finally:
        old.close()
        new.close()


async def test_a_stock_installation_is_followed_without_writing_to_it(stage: Stage) -> None:
    await installation.uninstall(stage.dsn)
    connection = await stage.connect()
    await connection.execute(STOCK_TABLES + STOCK_FUNCTIONS)
    once, killed = await stage.start_worker("5 minutes"), await stage.start_worker("5 minutes")
    sessions = {id: await stage.heartbeat_session(id) for id in (once, killed)}
    for id in sessions:
        await stage.beat(id, 1)
    await stage.turn(4)
    assert stage.counts(once) == stage.counts(killed) == (1, 0)
    for session in sessions.values():
        await session.close()
    await stage.beat(once, 2)  # the heartbeat of its orderly end, long before the next one would be due
    await stage.turn(2)
    assert stage.describe(once).inactive_reason == INACTIVE_REASON_SHUTDOWN
    assert stage.counts(once) == (3, 0)
    await stage.turn(6)
    assert stage.describe(killed).inactive_reason == INACTIVE_REASON_LEASE_EXPIRED
    assert await stage.run("SELECT to_regclass('ai.liveness_workers')") is None


async def test_a_unit_or_worker_that_is_not_there_is_not_made_up(stage: Stage) -> None:
    await stage.turn(3)
    assert stage.worker_keys() == {"door:pgai"}
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        stage.unit("1")
