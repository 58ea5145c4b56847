"""Runs pgai's own class WorkerTracking, as it is on PyPI: counts what a line on stdin says, and tells that it has. It imports nothing
of liveness.

The packages around the class are not run: they import what a vectorizer needs, a hundred times as much.
"""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import structlog


def skip_packages(folder: Path, *names: str) -> None:
    for name in names:
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package


skip_packages(Path(sys.argv[1]), "pgai", "pgai.vectorizer")
from pgai.vectorizer.features.features import Features  # noqa: E402
from pgai.vectorizer.worker_tracking.worker_tracking import WorkerTracking  # noqa: E402


async def main(dsn: str, interval_s: float) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    tracking = WorkerTracking(dsn, interval_s, Features.for_testing_latest_version(), "0.12.1")
    await tracking.start()
    print(tracking.worker_id, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            match line.split():
                case ["success", unit, count]:
                    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                        await tracking.save_vectorizer_success(connection, int(unit), int(count))
                case ["error", unit, message]:
                    await tracking.save_vectorizer_error(int(unit), message)
                case ["stop"]:
                    await tracking.force_last_heartbeat_and_stop()
        except psycopg.OperationalError as error:
            print("failed:", *str(error).split(), flush=True)
        else:
            print("done", flush=True)


asyncio.run(main(sys.argv[2], float(sys.argv[3])))
