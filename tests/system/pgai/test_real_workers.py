"""The real pgai: its worker as a process, as it is on PyPI."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
    Worker,
)
from tests.databases import PostgresServer
from tests.system.pgai.conftest import Stage


def cli(python: Path, dsn: str, *arguments: str) -> list[str]:
    return [str(python.with_name("pgai")), "vectorizer", "worker", "-d", dsn, *arguments]


def only(workers: dict[str, Worker]) -> Worker:
    (worker,) = workers.values()
    return worker


async def test_a_worker_appears_renews_and_is_inactive_soon_after_it_was_killed(
    stage: Stage, pgai_python: Path
) -> None:
    await stage.server.start()
    child = await stage.start_pgai(*cli(pgai_python, stage.dsn, "--poll-interval", "1s"))
    first = only(await stage.eventually(lambda workers: len(workers) == 1 and only(workers).sequence >= 4))
    assert first.sdk_version == "0.12.1"
    assert first.state == WORKER_STATE_ACTIVE
    later = only(await stage.eventually(lambda workers: only(workers).sequence >= first.sequence + 4))
    assert later.lease_deadline.ToMilliseconds() > first.lease_deadline.ToMilliseconds()
    began = time.monotonic()
    await stage.end(child, signal.SIGKILL)
    dead = only(await stage.eventually(lambda workers: only(workers).state == WORKER_STATE_INACTIVE))
    print(f"INACTIVE {time.monotonic() - began:.1f} s after kill -9")
    assert dead.inactive_reason == INACTIVE_REASON_LEASE_EXPIRED


async def test_a_worker_that_runs_once_says_goodbye(stage: Stage, pgai_python: Path) -> None:
    await stage.server.start()
    child = await stage.start_pgai(*cli(pgai_python, stage.dsn, "--once", "--poll-interval", "5m"))
    assert await child.wait() == 0, stage.pgai_log.read_text()
    found = await stage.eventually(
        lambda workers: any(w.state == WORKER_STATE_INACTIVE for w in workers.values())
    )
    assert only(found).inactive_reason == INACTIVE_REASON_SHUTDOWN


async def test_a_worker_that_lost_its_heartbeats_with_the_database_is_not_declared_dead(
    stage: Stage, pgai_python: Path, postgres: PostgresServer
) -> None:
    await stage.server.start()
    child = await stage.start_pgai(*cli(pgai_python, stage.dsn, "--poll-interval", "1s"))
    await stage.eventually(lambda workers: len(workers) == 1 and only(workers).sequence >= 4)
    postgres.stop()
    await stage.pgai_logs("heartbeat exiting due to too many failures")
    postgres.start()
    id = next(iter(await stage.workers()))
    await stage.view_says(id, "ACTIVE", "no heartbeats since the database restarted")
    before = only(await stage.workers())
    after = only(
        await stage.eventually(
            lambda workers: only(workers).lease_deadline.seconds > before.lease_deadline.seconds
        )
    )
    assert after.state == WORKER_STATE_ACTIVE
    assert child.returncode is None
