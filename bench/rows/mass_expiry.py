"""Ten thousand leases lapse at once: ours with ten activities each, until every reschedule is committed, against etcd,
which only revokes the leases.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench import load
from bench.messages import batch, check_batch, heartbeat, holding
from bench.peers import etcd
from bench.rounds import AT_LEAST, Bar, alternate, rounded, row, say
from bench.sides import side
from bench.watching import Watch, without_brake

EXPIRY = "10,000 leases × 10 activities lapse at once"
NAMES = {
    EXPIRY: "leases per second until all 100,000 reschedules are committed, against etcd revoking 10,000 leases"
}
HELD = 10
BATCH = 100
LEASE_S = 6.0
ETCD_LEASE_S = 10
"""Longer, because it takes longer to grant that many."""


@contextmanager
def ours(braked=False):
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "bench.db")
        with side("liveness", "bench.liveness_server", f"sqlite:///{db}", "takeover_grace_ms=0") as server:
            if not braked:
                without_brake(server.address)
            yield server, db


def lapse(count, braked=False):
    """Seconds from when the first lease was due until the end of the last was seen; with that its reschedules, which
    are in the same transaction, are committed."""
    with ours(braked) as (server, db):
        took = asyncio.run(_lapse(server.address, count))
        _check_reschedules(db, count * HELD)
        return took


async def _lapse(address, count):
    async with grpc.aio.insecure_channel(address) as channel:
        watch = Watch(channel)
        await watch.begin()
        loop = asyncio.get_running_loop()
        renewed = await loop.run_in_executor(None, fill, address, count)
        done = await watch.until(count)
        if watch.activities != count * HELD:
            raise SystemExit(f"{watch.activities} activities were taken from workers, not {count * HELD}")
        return done - (renewed + LEASE_S)


def fill(address, count):
    """Workers, and then one more heartbeat of each, so that their leases end close together. Returns the wall time
    before the first of these."""
    method = "RecordWorkerHeartbeats"
    groups = [range(at, min(at + BATCH, count)) for at in range(0, count, BATCH)]
    first = [batch(holding(number, HELD) for number in group) for group in groups]
    load.turn(address, method, first, None, 4, check_batch)
    again = [batch(heartbeat(number, LEASE_S) for number in group) for group in groups]
    start = time.time()
    load.turn(address, method, again, None, 4, check_batch)
    return start


def _check_reschedules(db, wanted):
    """In the database itself."""
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        (found,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
    if found != wanted:
        raise SystemExit(f"{found} reschedules are in the database, not {wanted}")


def measure(plan):
    count = plan.sized(10_000, 100)
    rounds = plan.few_rounds
    with etcd.serving() as peer:
        found = alternate(
            EXPIRY,
            {
                "liveness": lambda: count / lapse(count),
                "etcd": lambda: count / peer.revoke(count, ETCD_LEASE_S),
            },
            rounds,
        )
    say("the same with the storm brake on")
    braked = lapse(count, braked=True)
    yield row(
        EXPIRY,
        "leases/s",
        found,
        "liveness",
        "etcd",
        Bar(sense=AT_LEAST, value=10.0),
        [
            (
                "ours from when the first lease was due, with 10 reschedules per lease in the same transactions; etcd from when "
                "the last was due, without any keys: it revokes at most 1,000 a second"
            ),
            (
                "the storm brake is off (storm_hold=0); with it on, leases are held for one lease first and then ended at "
                "1,000 a second, by design"
            ),
        ],
        {
            "leases": count,
            "seconds": {
                name: rounded(count / sorted(values)[len(values) // 2]) for name, values in found.items()
            },
            "seconds with the storm brake on": rounded(braked),
        },
    )
