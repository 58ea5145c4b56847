"""Our heartbeats against etcd's leases."""

from __future__ import annotations

import shutil
from itertools import count

from bench import load
from bench.messages import batch_request_of, check_batch, unary_request
from bench.peers import etcd
from bench.rounds import alternate, row
from bench.rows.against_noop import BATCH, BATCHES, BODIES, UNARY
from bench.rows.compare_with_peer import DURABLE, compare_with_peer, names
from bench.servers import Unavailable, liveness

GRANT, GRANT_TOGETHER = "etcd, lease grant", "etcd, lease grant, ours in batches of 100"
NAMES = {
    **names("etcd", "a keep-alive stream with one lease", "a keep-alive stream with a hundred"),
    GRANT: "a new worker per call against a new lease per call",
    GRANT_TOGETHER: "a hundred new workers per call against a new lease per call",
}
TTL_S = 3_600
FRESH = count(2_000_000)
"""Numbers of workers that are not registered yet."""


def measure(plan):
    with etcd.serving() as peer:
        if not shutil.which("h2load"):
            raise Unavailable("h2load is not installed, and no other client here sends many streams")
        leases = list(peer.fresh_ids(BODIES * BATCH))
        peer.grant_all(leases, TTL_S)

        def keep(size, calls, streams):
            groups = [
                [etcd.keep_alive(id) for id in leases[at * size : (at + 1) * size]] for at in range(BODIES)
            ]
            sizes = {peer.reply_bytes(group) for group in groups}
            targets = [(peer.address, load.framed(*group)) for group in groups]
            # Equal sizes of the answers prove that every lease existed each time.
            reply_bytes = sizes.pop() if len(sizes) == 1 else None
            took = load.run_frames(targets, etcd.KEEP_ALIVE, calls, streams, reply_bytes)
            return calls * BODIES * size / took

        ways = {
            f"etcd, {UNARY}": (UNARY, lambda: keep(1, plan.sized(2_000, 20), 16)),
            f"etcd, {BATCHES}": (BATCHES, lambda: keep(BATCH, plan.sized(200, 10), 4)),
        }
        notes = [
            "etcd keeps a keep-alive in the leader's memory; it restarts every lease after a change of leader"
        ]
        yield from compare_with_peer(plan, "etcd", ways, notes)
        yield from _grants(plan, peer)


def _grants(plan, peer):
    with liveness() as ours:

        def grant():
            amount = plan.sized(4_000, 50)
            return amount / peer.grant_all(peer.fresh_ids(amount), TTL_S)

        def register():
            amount = plan.sized(3_000, 50)
            bodies = [unary_request(next(FRESH)) for _ in range(amount)]
            return (
                amount / load.send_all(ours.address, "RecordWorkerHeartbeat", bodies, None, etcd.AT_ONCE)[0]
            )

        def register_together():
            bodies = [batch_request_of(next(FRESH) for _ in range(BATCH)) for _ in range(plan.sized(200, 5))]
            took, _ = load.send_all(ours.address, "RecordWorkerHeartbeats", bodies, None, 4, check_batch)
            return len(bodies) * BATCH / took

        notes = [
            DURABLE,
            "etcd's grant is in its log and synced, too; it holds a number and a time, ours also who the worker is",
            "both sides from a grpc.aio client, which is itself near its limit with single calls",
        ]
        for name, mine in ((GRANT, register), (GRANT_TOGETHER, register_together)):
            found = alternate(name, {"liveness": mine, "etcd": grant}, plan.few_rounds, warm=True)
            yield row(name, "leases/s", found, "liveness", "etcd", notes=notes)
