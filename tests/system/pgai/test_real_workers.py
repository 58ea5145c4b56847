"""The real pgai: its worker as a process, and its class WorkerTracking, as they are on PyPI."""

from __future__ import annotations

import asyncio
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

PROGRAM = Path(__file__).with_name("tracking_program.py")


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
    _, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    found = await stage.eventually(
        lambda workers: any(w.state == WORKER_STATE_INACTIVE for w in workers.values())
    )
    assert only(found).inactive_reason == INACTIVE_REASON_SHUTDOWN


async def test_counts_equal_what_the_worker_counted_though_the_server_was_killed(
    stage: Stage, pgai_python: Path
) -> None:
    await stage.run("INSERT INTO ai.vectorizer VALUES (1), (2)")
    await stage.server.start()
    child = await asyncio.create_subprocess_exec(
        str(pgai_python), str(PROGRAM), stage.dsn, "0.3",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None

    async def tell(line: str) -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{line}\n".encode())
        await child.stdin.drain()
        return (await child.stdout.readline()).decode().strip()

    try:
        id = (await child.stdout.readline()).decode().strip()
        successes = errors = 0
        for turn in range(4):
            for unit in (1, 2):
                await tell(f"success {unit} {turn + unit}")
                successes += turn + unit
            await tell("error 1 no-such-model")
            errors += 1
            if turn == 1:
                await stage.server.kill()
            if turn == 2:
                await stage.server.start()
        assert await tell("stop") == "stopped"
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    found = await stage.eventually(lambda workers: workers[id].inactive_reason == INACTIVE_REASON_SHUTDOWN)
    assert (found[id].successes, found[id].errors) == (successes, errors)
    assert found[id].last_error == "no-such-model"


async def test_a_worker_that_lost_its_heartbeats_with_the_database_is_not_declared_dead(
    stage: Stage, pgai_python: Path, postgres: PostgresServer
) -> None:
    await stage.server.start()
    child = await stage.start_pgai(*cli(pgai_python, stage.dsn, "--poll-interval", "1s"))
    await stage.eventually(lambda workers: len(workers) == 1 and only(workers).sequence >= 4)
    postgres.stop()
    await asyncio.sleep(2)  # its client tries three times, and then never again
    postgres.start()
    await stage.eventually(lambda _: "works again" in stage.server.log_text())
    before = only(await stage.workers())
    after = only(
        await stage.eventually(
            lambda workers: only(workers).lease_deadline.seconds > before.lease_deadline.seconds
        )
    )
    assert after.state == WORKER_STATE_ACTIVE
    assert child.returncode is None
