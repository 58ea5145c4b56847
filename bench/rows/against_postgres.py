"""Our heartbeats against a table of workers in PostgreSQL with one UPDATE per heartbeat, sent by pgbench."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from bench.rows.against_noop import BATCH, BATCHES, UNARY
from bench.rows.compare_with_peer import compare_with_peer, names
from bench.servers import Unavailable
from tests.databases import PostgresFailed, PostgresServer

NAMES = names("PostgreSQL", "one UPDATE by key", "one UPDATE of a hundred rows")
WORKERS = 1_600
CLIENTS = {UNARY: 16, BATCHES: 4}
TABLE = """
CREATE TABLE workers (
    worker_key text PRIMARY KEY, number int NOT NULL UNIQUE, session_id text NOT NULL, profile jsonb NOT NULL,
    successes bigint NOT NULL, heartbeat_at timestamptz NOT NULL, deadline timestamptz NOT NULL
) WITH (fillfactor = 50)
"""
FILL = f"""
INSERT INTO workers SELECT 'worker-' || n, n, '2026-11-16T08:00:00-' || n,
    '{{"task_queue": "orders", "build_id": "build-2026.11.1", "sdk_name": "liveness-python"}}', 0, now(), now()
FROM generate_series(0, {WORKERS - 1}) AS n
"""
SET = "SET successes = successes + 3, heartbeat_at = now(), deadline = now() + interval '1 hour'"
SCRIPTS = {
    UNARY: f"\\set n random(0, {WORKERS - 1})\nUPDATE workers {SET} WHERE worker_key = 'worker-' || :n;\n",
    # Each client has its own rows, so that none waits for locks of another.
    BATCHES: f"UPDATE workers {SET} WHERE number BETWEEN :client_id * {BATCH} AND :client_id * {BATCH} + {BATCH - 1};\n",
}


class Updates:
    def __init__(self, postgres, folder):
        self._postgres, self._folder = postgres, folder

    def run(self, kind, transactions):
        """Return rows per second; all transactions of each client must succeed."""
        script = Path(self._folder, "script")
        script.write_text(SCRIPTS[kind], encoding="utf-8")
        options = ["-n", "-M", "prepared", "-c", str(CLIENTS[kind]), "-j", "1", "-t", str(transactions)]
        command = [self._postgres.programs / "pgbench", *options, "-f", script, self._postgres.url()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rate = re.search(r"tps = ([\d.]+)", done.stdout)
        counted = re.search(r"actually processed: (\d+)/(\d+)", done.stdout)
        if done.returncode or rate is None or counted is None or counted[1] != counted[2]:
            raise SystemExit(f"pgbench failed: {(done.stderr.splitlines() or ['it said nothing'])[-1]}")
        return float(rate[1]) * (1 if kind == UNARY else BATCH)


def measure(plan):
    try:
        postgres = PostgresServer(fsync=True)
    except PostgresFailed as error:
        raise Unavailable(str(error).splitlines()[0]) from error
    with postgres, tempfile.TemporaryDirectory() as folder:
        postgres.execute(TABLE)
        postgres.execute(FILL)
        updates = Updates(postgres, folder)
        ways = {
            f"PostgreSQL, {UNARY}": (UNARY, lambda: updates.run(UNARY, plan.sized(500, 20))),
            f"PostgreSQL, {BATCHES}": (BATCHES, lambda: updates.run(BATCHES, plan.sized(400, 10))),
        }
        notes = [
            (
                "PostgreSQL: synchronous_commit=on, 16 (4) connections with prepared statements from pgbench, straight to the "
                "database without a service in front; a program still has to look for overdue rows"
            ),
        ]
        yield from compare_with_peer(plan, "PostgreSQL", ways, notes)
