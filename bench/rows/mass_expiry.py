"""Ten thousand leases end at once: ours with ten activities each, until every reschedule is committed and until every
activity is available again, against etcd, which only revokes the leases.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import grpc

from bench import load
from bench.event_watch import SECONDS_MAX, EventWatch, disable_storm_hold
from bench.messages import NAMESPACE, batch, check_batch, heartbeat, registering_heartbeat
from bench.peers import etcd
from bench.rounds import AT_LEAST, Bar, alternate, print_progress, rounded, row
from bench.servers import server_process
from liveness.domain.activity import ActivityState
from liveness.v1.activity_pb2 import PollActivityRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub

EXPIRY = "10,000 leases × 10 activities lapse at once"
AVAILABLE = "the same until all 100,000 activities are available again"
NAMES = {
    EXPIRY: "leases per second until all 100,000 reschedules are committed, against etcd revoking 10,000 leases",
    AVAILABLE: "leases per second until all 100,000 activities are available and one is polled, against the same",
}
HELD = 10
BATCH = 100
LEASE_S = 6.0
ETCD_LEASE_S = 10
"""Longer, because etcd takes longer to grant that many."""


@contextmanager
def ours(with_storm_hold=False):
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "bench.db")
        with server_process(
            "liveness", "bench.liveness_server", f"sqlite:///{db}", "takeover_grace_ms=0"
        ) as server:
            if not with_storm_hold:
                disable_storm_hold(server.address)
            yield server, db


def expiry_seconds(count, with_storm_hold=False):
    """Return the seconds from the last deadline until all reschedules are committed."""
    with ours(with_storm_hold) as (server, db):
        _, due = register_workers(server.address, count)
        time.sleep(max(0.0, due - time.time()))
        return wait_until_committed(db, count * HELD) - due


def wait_until_committed(db, wanted):
    """Return the wall time at which another connection to the database sees this many reschedules."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        end = time.time() + SECONDS_MAX
        while time.time() < end:
            # The number of assigned ids, which equals the number of rows because nothing is deleted here.
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'tasks'").fetchone()
            if found and found[0] >= wanted:
                now = time.time()
                (rows,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
                if rows != wanted:
                    raise SystemExit(f"{rows} reschedules are in the database, not {wanted}")
                return now
            time.sleep(0.01)
    raise SystemExit(f"the reschedules were not committed within {SECONDS_MAX} s")


def seconds_until_moved(count):
    """Return the seconds from the last deadline until all reschedules are committed, and until all activities are
    available again and a worker that lives has polled some of them."""
    with ours() as (server, db):
        _, due = register_workers(server.address, count)
        time.sleep(max(0.0, due - time.time()))
        committed = wait_until_committed(db, count * HELD)
        available = wait_until_available(server.address, db, count * HELD)
        return committed - due, available - due


def wait_until_available(address, db, wanted):
    """Return the wall time at which another connection to the database sees this many available activities and a poll is
    answered with some of them."""
    survivor = heartbeat(10**6)
    load.send_all(address, "RecordWorkerHeartbeats", [batch([survivor])], None, 1, check_batch)
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        end = time.time() + SECONDS_MAX
        while time.time() < end:
            (found,) = connection.execute(
                "SELECT count(*) FROM activities WHERE namespace = ? AND task_queue = ? AND state = ?",
                (NAMESPACE, survivor.task_queue, ActivityState.AVAILABLE),
            ).fetchone()
            if found >= wanted:
                _poll(address, survivor)
                return time.time()
            time.sleep(0.05)
    raise SystemExit(f"the activities were not available within {SECONDS_MAX} s")


def _poll(address, worker):
    request = PollActivityRequest(
        namespace=NAMESPACE,
        worker_instance_key=worker.worker_instance_key,
        session_id=worker.session_id,
        max_activities=HELD,
    )
    with grpc.insecure_channel(address) as channel:
        answer = ActivityServiceStub(channel).PollActivity(request, timeout=SECONDS_MAX)
    if len(answer.activities) != HELD:
        raise SystemExit(f"a poll got {len(answer.activities)} activities, not {HELD}")


def watched_seconds(count):
    """Return the seconds from the last deadline until a watcher has seen the end of each lease."""
    with ours() as (server, _):
        return asyncio.run(_watched_seconds(server.address, count))


async def _watched_seconds(address, count):
    async with grpc.aio.insecure_channel(address) as channel:
        watch = EventWatch(channel)
        await watch.begin()
        _, due = await asyncio.get_running_loop().run_in_executor(None, register_workers, address, count)
        done = await watch.until(count)
        if watch.activities != count * HELD:
            raise SystemExit(f"{watch.activities} activities were taken from workers, not {count * HELD}")
        return done - due


def register_workers(address, count):
    """Register workers and send two more heartbeats of each, so that their leases end close together; the server takes
    the slow path for the first of these. Returns the first and the last deadline.
    """
    method = "RecordWorkerHeartbeats"
    groups = [range(at, min(at + BATCH, count)) for at in range(0, count, BATCH)]
    first = [batch(registering_heartbeat(number, HELD) for number in group) for group in groups]
    again = [batch(heartbeat(number, LEASE_S) for number in group) for group in groups]
    load.send_all(address, method, first, None, 4, check_batch)
    load.send_all(address, method, again, None, 4, check_batch)
    start = time.time()
    load.send_all(address, method, again, None, 4, check_batch)
    return start + LEASE_S, time.time() + LEASE_S


def measure(plan):
    count = plan.sized(10_000, 100)
    rounds = plan.few_rounds
    available: list[float] = []

    def ours_per_second():
        committed_s, available_s = seconds_until_moved(count)
        available.append(count / available_s)
        return count / committed_s

    with etcd.serving() as peer:
        found = alternate(
            EXPIRY,
            {"liveness": ours_per_second, "etcd": lambda: count / peer.revoke(count, ETCD_LEASE_S)},
            rounds,
        )
    print_progress("the same with a watcher of all events, and with the storm hold on")
    watched, with_storm_hold = watched_seconds(count), expiry_seconds(count, with_storm_hold=True)
    yield row(
        EXPIRY,
        "leases/s",
        found,
        "liveness",
        "etcd",
        Bar(sense=AT_LEAST, value=10.0, aim=20.0),
        [
            (
                "both from when the last lease was due: ours until another connection to the database sees all reschedules, "
                "10 per lease; etcd until its leases are gone, without any keys: it revokes at most 1,000 a second"
            ),
            (
                "the storm hold is off (storm_hold=0); with it on, leases are held for one lease first and then ended at "
                "1,000 a second, by design"
            ),
        ],
        {
            "leases": count,
            "seconds": _median_seconds(count, found),
            "seconds until a watcher of all events has seen it": rounded(watched),
            "seconds with the storm hold on": rounded(with_storm_hold),
        },
    )
    moved = {"liveness": available, "etcd": found["etcd"]}
    yield row(
        AVAILABLE,
        "leases/s",
        moved,
        "liveness",
        "etcd",
        Bar(sense=AT_LEAST, value=1.0, aim=3.0),
        [
            (
                "in the same rounds; ours until another connection to the database sees every activity available with its "
                "next attempt, and a worker that lives has polled some"
            ),
        ],
        {"leases": count, "seconds": _median_seconds(count, moved)},
    )


def _median_seconds(count, found):
    return {name: rounded(count / sorted(values)[len(values) // 2]) for name, values in found.items()}
