"""Our heartbeats against Temporal's own worker heartbeats."""

from __future__ import annotations

from bench import load
from bench.peers import temporal
from bench.rows.against_noop import BATCH, BATCHES, BODIES, UNARY
from bench.rows.compare_with_peer import compare_with_peer, names

NAMES = names("Temporal", "its RecordWorkerHeartbeat with one worker", "the same with a hundred workers")


def measure(plan):
    with temporal.serving() as peer:

        def send(size, calls, streams):
            bodies = requests[size]

            def once():
                took = load.run(peer.address, temporal.METHOD, bodies, calls, streams, temporal.REPLY_BYTES)
                peer.check_listed(size * BODIES)
                return calls * BODIES * size / took

            return once

        requests = {size: temporal.bodies(BODIES, size) for size in (1, BATCH)}
        ways = {
            f"Temporal, {UNARY}": (UNARY, send(1, plan.sized(600, 20), 16)),
            f"Temporal, {BATCHES}": (BATCHES, send(BATCH, plan.sized(200, 10), 4)),
        }
        notes = [
            (
                "Temporal keeps heartbeats in memory and forgets them with the process; it ends no leases and reschedules "
                "nothing because of them"
            ),
            "its development server, one process with its limits on calls per second lifted",
        ]
        yield from compare_with_peer(plan, "Temporal", ways, notes)
