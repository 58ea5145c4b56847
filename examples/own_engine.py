"""An engine of your own that learns from liveness which jobs lost their process.

The engine is a table of jobs in an SQLite file; any number of processes take jobs from it. Each process is a worker, and
binds a job before it starts the job. If the process dies, liveness lists the job with the next attempt number; the table
compares attempts, and so refuses the late write of a zombie.

    liveness serve                            in one terminal
    python examples/own_engine.py             in two others; kill -9 one of them and watch the other

Here the engine polls for lost jobs; with `liveness serve --webhook-url` the server would push them.
"""

import argparse
import asyncio
import os
import sqlite3
from pathlib import Path

from liveness import ActivityRef, Client, Worker
from liveness.sdk import ActivityLost, Binding

QUEUE = "own-engine"
TABLE = "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, attempt INTEGER, state TEXT, result TEXT)"
ADD = "INSERT OR IGNORE INTO jobs VALUES (?, 1, 'ready', NULL)"
READY = "SELECT id, attempt FROM jobs WHERE state = 'ready' ORDER BY random()"
OPEN = "SELECT 1 FROM jobs WHERE state <> 'done'"
TAKE = "UPDATE jobs SET state = 'running' WHERE id = ? AND attempt = ? AND state = 'ready'"
FREE = "UPDATE jobs SET state = 'ready', attempt = ?2 WHERE id = ?1 AND attempt < ?2 AND state <> 'done'"
FINISH = "UPDATE jobs SET state = 'done', result = ?3 WHERE id = ?1 AND attempt = ?2 AND state = 'running'"


def changed(db: sqlite3.Connection, statement: str, *values: object) -> bool:
    return db.execute(statement, values).rowcount == 1


async def do(db: sqlite3.Connection, binding: Binding, seconds: float) -> None:
    """Do the job. If the lease is lost, this coroutine is cancelled at its next await; a thread would check `binding.lost`."""
    job = binding.ref.workflow_id
    print(f"{job} begun, {binding.fencing_token}", flush=True)
    await asyncio.sleep(seconds)
    written = changed(db, FINISH, job, binding.fencing_token.attempt, f"by process {os.getpid()}")
    print(f"{job} {'done' if written else 'refused: another process has it'}", flush=True)


async def main(address: str, path: str, jobs: int, seconds: float) -> None:
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.execute(TABLE)
    db.executemany(ADD, [(f"{Path(path).stem}-{number}",) for number in range(1, jobs + 1)])
    async with Worker(address, task_queue=QUEUE) as worker, Client(address) as client:
        while db.execute(OPEN).fetchone():
            ready = db.execute(READY).fetchone()
            if ready is None:
                for lost in await client.list(task_queue=QUEUE):
                    changed(
                        db, FREE, lost.id, lost.ref.attempt
                    )  # lost.ref has the number of the next attempt
                await asyncio.sleep(0.2)
                continue
            job, attempt = ready
            try:
                # The server records the binding before the body begins, so the job cannot be forgotten.
                async with worker.bind(ActivityRef(job, attempt=attempt)) as binding:
                    if changed(db, TAKE, job, attempt):
                        await do(db, binding, seconds)
            except ActivityLost as error:
                print(error, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", default="127.0.0.1:7400")
    parser.add_argument("--db", default="jobs.db")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a job takes")
    options = parser.parse_args()
    asyncio.run(main(options.address, options.db, options.jobs, options.seconds))
