"""pgai's own class WorkerTracking against a real PostgreSQL that a server follows: what it counted is what liveness counts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_INACTIVE,
)
from tests.databases import PostgresServer
from tests.system.pgai.conftest import Stage
from tests.system.pgai.tracked_worker import TrackedWorker


@pytest.fixture
async def worker(stage: Stage) -> AsyncIterator[TrackedWorker]:
    await stage.run("INSERT INTO ai.vectorizer VALUES (1), (2)")
    worker = TrackedWorker(stage.dsn, 0.3)
    await stage.server.start()
    await worker.start()
    yield worker
    await worker.kill()


async def count_a_little(worker: TrackedWorker) -> None:
    for unit in (1, 2):
        await worker.succeed(unit, 3 + unit)
    await worker.fail(1, "no-such-model")


async def all_is_recorded(stage: Stage, worker: TrackedWorker) -> None:
    counted = worker.successes.total(), worker.errors.total()
    await stage.eventually(
        lambda found: worker.id in found and (found[worker.id].successes, found[worker.id].errors) == counted
    )


async def assert_all_is_counted(stage: Stage, worker: TrackedWorker) -> None:
    """Once the worker has stopped in order."""
    found = await stage.eventually(lambda found: found[worker.id].inactive_reason == INACTIVE_REASON_SHUTDOWN)
    dead = found[worker.id]
    assert (dead.successes, dead.errors) == (worker.successes.total(), worker.errors.total())
    assert dead.last_error == worker.last_error
    counted = {str(unit): (worker.successes[unit], worker.errors[unit]) for unit in worker.successes}
    # Progress is told after the goodbye of the same reading.
    units = await stage.eventually_progress(counted)
    assert {each.last_success_worker for each in units.values()} == {worker.id}


async def test_counts_equal_what_the_worker_counted_though_the_server_is_killed(
    stage: Stage, worker: TrackedWorker
) -> None:
    for turn in range(4):
        await count_a_little(worker)
        if turn == 1:
            await stage.server.kill()
        if turn == 2:
            await stage.server.start()
    await worker.stop()
    await assert_all_is_counted(stage, worker)


async def test_counts_equal_what_the_worker_counted_though_database_and_server_are_restarted(
    stage: Stage, worker: TrackedWorker, postgres: PostgresServer
) -> None:
    """Its heartbeats end with the database, while it works on: it lives, and its last heartbeat brings what it counted."""
    await count_a_little(worker)
    await all_is_recorded(stage, worker)
    postgres.crash()
    await worker.logged("heartbeat exiting due to too many failures")
    await stage.server.kill()
    postgres.start()
    await stage.server.start()
    await count_a_little(worker)
    await stage.view_says(worker.id, "ACTIVE", "no heartbeats since the database restarted")
    await worker.stop()
    await assert_all_is_counted(stage, worker)


async def test_a_worker_that_is_killed_is_inactive(stage: Stage, worker: TrackedWorker) -> None:
    await count_a_little(worker)
    await all_is_recorded(stage, worker)
    await worker.kill()
    found = await stage.eventually(lambda found: found[worker.id].state == WORKER_STATE_INACTIVE)
    dead = found[worker.id]
    assert dead.inactive_reason == INACTIVE_REASON_LEASE_EXPIRED
    assert (dead.successes, dead.errors) == (worker.successes.total(), worker.errors.total())
