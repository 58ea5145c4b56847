"""Our heartbeats against Valkey's keys that expire, in memory and on disk."""

from __future__ import annotations

from bench.peers import valkey
from bench.rows.against_noop import BATCH, BATCHES, UNARY
from bench.rows.compare_with_peer import compare_with_peer, names

HOW = {"Valkey on disk": True, "Valkey in memory": False}
NAMES = {
    name: says
    for peer in HOW
    for name, says in names(
        peer, "SET … EX, one under way per connection", "pipelines of a hundred SET … EX"
    ).items()
}
CONNECTIONS = {UNARY: 128, BATCHES: 8}


def measure(plan):
    for peer, durable in HOW.items():
        with valkey.serving(peer, durable) as server:
            single = [valkey.beat(number) for number in range(CONNECTIONS[UNARY])]
            together = [
                b"".join(valkey.beat(at * BATCH + number) for number in range(BATCH))
                for at in range(CONNECTIONS[BATCHES])
            ]
            ways = {
                f"{peer}, {UNARY}": (
                    UNARY,
                    lambda server=server, single=single: server.run(single, 1, plan.sized(800, 20)),
                ),
                f"{peer}, {BATCHES}": (
                    BATCHES,
                    lambda server=server, together=together: server.run(together, BATCH, plan.sized(300, 10)),
                ),
            }
            kept = (
                "appendonly yes, appendfsync always: on disk before the answer"
                if durable
                else "nothing on disk"
            )
            notes = [
                f"Valkey: {kept}; a key that expires vanishes: no client is told, and no work is rescheduled",
                "a C server with a protocol of its own, not gRPC: what a heartbeat could cost without either",
            ]
            yield from compare_with_peer(plan, peer, ways, notes)
