"""The latency of one heartbeat at half the maximum load."""

from __future__ import annotations

import statistics

from bench import load
from bench.rounds import AT_MOST, OURS, Bar, alternate, print_progress, quantile, rounded, row, spread
from bench.rows.against_noop import UNARY, Workload
from bench.servers import liveness, server_process

P99 = "p99 at half the maximum load"
NAMES = {
    P99: "a heartbeat per call, at a set rate that does not wait for answers; against a server that does nothing"
}
SECONDS = 8


def measure(plan):
    with server_process("no-op", "bench.noop_server") as noop, liveness() as ours:
        workload = Workload(UNARY, plan.sized(1_000, 20))
        workload.send_to_ours(ours)  # warm-up
        most = statistics.median(workload.send_to_ours(ours) for _ in range(plan.few_rounds))
        rate = most / 2
        print_progress(f"maximum {most:,.0f} heartbeats/s; sending {rate:,.0f}/s")
        halves: dict[str, list[float]] = {"no-op": [], "liveness": []}

        def p99(to):
            def once():
                seconds = max(1.0, SECONDS * min(1.0, plan.scale))
                took_ms = load.at_rate(to.address, workload.method, workload.bodies, rate, seconds)
                if to is ours:
                    workload.sent += len(took_ms) // len(workload.bodies)
                halves[to.name].append(statistics.median(took_ms))
                return quantile(took_ms, 0.99)

            return once

        found = alternate(P99, {"no-op": p99(noop), "liveness": p99(ours)}, plan.few_rounds)
        if load.driver() == "h2load":  # the other client checks every status, and counts differently
            workload.check_applied(ours)
    yield row(
        P99,
        "ms, p99",
        found,
        "liveness",
        "no-op",
        Bar(sense=AT_MOST, value=10.0, of=OURS),
        [
            "the maximum is measured first, in the same run; both servers get the same rate",
            f"an answer waits for its commit; {load.driver()}",
        ],
        {
            "maximum, heartbeats/s": rounded(most),
            "sent, heartbeats/s": rounded(rate),
            "p50, ms": {name: spread(values)["median"] for name, values in halves.items()},
        },
    )
