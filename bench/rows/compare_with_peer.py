"""Our server against one peer, with one heartbeat per call and with a hundred."""

from __future__ import annotations

from contextlib import ExitStack

from bench.rounds import AT_LEAST, Bar, alternate, row
from bench.rows.against_noop import BATCHES, UNARY, Workload
from bench.servers import liveness
from liveness.server.edge_listener import edge_is_installed

EDGE = "edge"
EDGE_BARS = {
    "Temporal": Bar(sense=AT_LEAST, value=2.0, aim=6.0),
    "PostgreSQL": Bar(sense=AT_LEAST, value=1.5, aim=4.0),
    "etcd": Bar(sense=AT_LEAST, value=0.4, aim=1.0),
    "Valkey on disk": Bar(sense=AT_LEAST, value=0.4, aim=1.0),
}
"""For one heartbeat per call, by peer."""
DURABLE = "ours answers when the heartbeat is on disk (SQLite, synchronous=FULL)"


def compare_with_peer(plan, peer, ways, notes):
    """`ways`: row -> how ours sends (UNARY, BATCHES) and how the peer is measured, in heartbeats/s. Both listeners are measured in
    the same rounds."""
    with ExitStack() as stack:
        servers = [stack.enter_context(liveness())]
        if edge_is_installed():
            servers.append(stack.enter_context(liveness("listener=edge", name=EDGE)))
        for name, (kind, theirs) in ways.items():
            calls = plan.sized(600 if kind == UNARY else 200, 20)
            workloads = {server: Workload(kind, calls) for server in servers}
            sides = {
                server.name: lambda server=server, workload=workload: workload.send_to_ours(server)
                for server, workload in workloads.items()
            }
            found = alternate(name, {**sides, peer: theirs}, plan.few_rounds, warm=True)
            for server, workload in workloads.items():
                workload.check_applied(server)
            yield row(name, "heartbeats/s", found, "liveness", peer, notes=[DURABLE, *notes])
            if EDGE in found:
                bar = EDGE_BARS.get(peer) if kind == UNARY else None
                yield row(edge_name(name), "heartbeats/s", found, EDGE, peer, bar, [DURABLE, *notes])


def edge_name(name):
    return f"{name}, ours by the edge"


def names(peer, single, together):
    own = {
        f"{peer}, {UNARY}": f"one heartbeat per call against {single}",
        f"{peer}, {BATCHES}": f"a hundred per call against {together}",
    }
    if not edge_is_installed():
        return own
    return own | {
        edge_name(name): f"the same, taken in by the native edge: {says}" for name, says in own.items()
    }
