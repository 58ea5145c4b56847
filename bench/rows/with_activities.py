"""Heartbeats that change bindings, against heartbeats without activities, and how the cost grows."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from bench import load
from bench.messages import (
    CHANGES_MAX,
    alternating_heartbeats,
    batch,
    changes_per_heartbeat,
    check_batch,
    heartbeat,
    registering_heartbeat,
    unary_request_of,
)
from bench.rounds import AT_MOST, Bar, alternate, print_progress, rounded, row
from bench.servers import liveness

CHURN = "1,000 workers × 100 activities"
NAMES = {CHURN: "half the bindings change with each heartbeat: p50 against the same without activities"}
COUNTS = (1, 10, 100, 1_000)


def row_name(held):
    return f"{held:,} {'activity' if held == 1 else 'activities'} per worker"


GROWTH_NAMES = {
    row_name(held): f"heartbeats/s, memory, disk; half change with each heartbeat, {CHANGES_MAX // 2} at most"
    for held in COUNTS
}
AT_ONCE = 64
"""Enough that the server is never idle: the rows measure what a heartbeat costs, not how long it waits."""
FEW_AT_ONCE = 8
BINDINGS_MIN = 10_000
TOGETHER = 20
"""Workers in one registering call, so that the largest call stays below gRPC's 4 MB."""


class Fleet:
    """Workers of one server that hold this many activities each, and their next heartbeats."""

    def __init__(self, server, workers, held):
        self.server, self.workers, self.held = server, workers, held
        # First without activities, so that only the activities make the memory grow.
        self._all([heartbeat(number) for number in range(workers)])
        before = server.resident_bytes()
        if held:
            self._all([registering_heartbeat(number, held) for number in range(workers)])
        self.memory = server.resident_bytes() - before
        pairs = [alternating_heartbeats(number, held) for number in range(workers)] if held else []
        if held:
            self._bodies = [unary_request_of(pair[0]) for pair in pairs] + [
                unary_request_of(pair[1]) for pair in pairs
            ]
        else:
            self._bodies = [unary_request_of(heartbeat(number)) for number in range(workers)]

    def _all(self, beats):
        bodies = [batch(beats[at : at + TOGETHER]) for at in range(0, len(beats), TOGETHER)]
        load.send_all(self.server.address, "RecordWorkerHeartbeats", bodies, None, 4, check_batch)

    def beat(self, times, at_once=AT_ONCE):
        """Send the alternating heartbeats of all workers `times` times.

        Returns the seconds, and the milliseconds of each call.
        """
        calls = 2 * times * self.workers
        at_once = min(
            at_once, self.workers // 2
        )  # never two calls of one worker, which could overtake each other
        return load.send_all(self.server.address, "RecordWorkerHeartbeat", self._bodies, calls, at_once)


def measure(plan):
    workers = plan.sized(1_000, 20)
    with liveness(name="with") as one, liveness(name="without") as other:
        holders, others = Fleet(one, workers, 100), Fleet(other, workers, 0)
        cpu: dict[str, list[float]] = {"with": [], "without": []}
        calm: dict[str, list[float]] = {"with": [], "without": []}

        def p50(fleet):
            def once():
                before = fleet.server.cpu_s()
                _, took_ms = fleet.beat(2)
                cpu[fleet.server.name].append((fleet.server.cpu_s() - before) / len(took_ms) * 1e6)
                _, few_ms = fleet.beat(1, FEW_AT_ONCE)
                calm[fleet.server.name].append(statistics.median(few_ms))
                return statistics.median(took_ms)

            return once

        found = alternate(CHURN, {"with": p50(holders), "without": p50(others)}, plan.rounds, warm=True)
    used = {name: round(statistics.median(values[1:]), 1) for name, values in cpu.items()}
    yield row(
        CHURN,
        "ms, p50",
        found,
        "with",
        "without",
        Bar(sense=AT_MOST, value=2.5, aim=1.5),
        [
            f"{workers:,} workers, {AT_ONCE} calls under way at a time from a grpc.aio client, so that the server is never idle",
            "each heartbeat unbinds 50 activities and binds 50 others; the prototype that this replaces took 92 × as long",
        ],
        {
            "CPU µs per heartbeat": used,
            f"p50 with {FEW_AT_ONCE} under way, ms": {
                name: rounded(statistics.median(values[1:])) for name, values in calm.items()
            },
        },
    )


def grow(plan):
    workers = plan.sized(200, 4)
    with ExitStack() as stack:
        fleets = {}
        for held in COUNTS:
            server = stack.enter_context(liveness(name=row_name(held)))
            fleets[row_name(held)] = Fleet(server, workers, held)
            print_progress(f"{row_name(held)}: {workers:,} workers are there")
        written: dict[str, list[float]] = {name: [] for name in fleets}

        def rate(fleet):
            def once():
                before = fleet.server.written_bytes()
                took, each = fleet.beat(max(1, min(8, 400 // fleet.held)))
                written[fleet.server.name].append((fleet.server.written_bytes() - before) / len(each))
                return len(each) / took

            return once

        sides = {name: rate(fleet) for name, fleet in fleets.items()}
        found = alternate("growth of activities", sides, plan.few_rounds)
    base = row_name(COUNTS[0])
    for name, fleet in fleets.items():
        # A few hundred bindings are lost in the noise of any call.
        enough = workers * fleet.held >= BINDINGS_MIN
        memory = {"memory, bytes per binding": rounded(fleet.memory / workers / fleet.held)} if enough else {}
        yield row(
            name,
            "heartbeats/s",
            {side: found[side] for side in dict.fromkeys((name, base))},
            name,
            base,
            notes=[
                (
                    f"{workers:,} workers on a server of their own; single calls from a grpc.aio client; each heartbeat changes "
                    f"half of what the worker holds, at most {CHANGES_MAX} changes"
                )
            ],
            more={
                "activities": fleet.held,
                **memory,
                "disk, bytes per heartbeat": rounded(statistics.median(written[name])),
                "disk, bytes per changed binding": rounded(
                    statistics.median(written[name]) / (2 * changes_per_heartbeat(fleet.held))
                ),
            },
        )
