"""Our server against one peer, with one heartbeat per call and with a hundred."""

from __future__ import annotations

from bench.rounds import alternate, row
from bench.rows.against_noop import BATCHES, UNARY, Workload
from bench.servers import liveness

DURABLE = "ours answers when the heartbeat is on disk (SQLite, synchronous=FULL)"


def compare_with_peer(plan, peer, ways, notes):
    """`ways`: row -> how ours sends (UNARY, BATCHES) and how the peer is measured, in heartbeats/s."""
    with liveness() as ours:
        for name, (kind, theirs) in ways.items():
            workload = Workload(kind, plan.sized(600 if kind == UNARY else 200, 20))
            sides = {"liveness": lambda workload=workload: workload.send_to_ours(ours), peer: theirs}
            found = alternate(name, sides, plan.few_rounds, warm=True)
            workload.check_applied(ours)
            yield row(name, "heartbeats/s", found, "liveness", peer, notes=[DURABLE, *notes])


def names(peer, single, together):
    return {
        f"{peer}, {UNARY}": f"one heartbeat per call against {single}",
        f"{peer}, {BATCHES}": f"a hundred per call against {together}",
    }
