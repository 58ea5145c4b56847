"""Runs pgai's own class WorkerTracking, counts what a line on stdin says, and tells what it counted. It imports nothing of liveness."""

import asyncio
import sys

import psycopg
import structlog
from pgai.vectorizer.features.features import Features
from pgai.vectorizer.worker_tracking.worker_tracking import WorkerTracking


async def main(dsn: str, interval_s: float) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    features = Features.for_testing_latest_version()
    tracking = WorkerTracking(dsn, interval_s, features, "0.12.1")
    await tracking.start()
    print(tracking.worker_id, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["success", unit, count]:
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                    await tracking.save_vectorizer_success(connection, int(unit), int(count))
            case ["error", unit, message]:
                await tracking.save_vectorizer_error(int(unit), message)
            case ["stop"]:
                await tracking.force_last_heartbeat_and_stop()
                print("stopped", flush=True)
                return
        print("done", flush=True)


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
