"""What the native edge takes in, against the same peers as the pure-Python listener, and against that.

Both listeners are measured in the same rounds, so that their figures stand beside each other.
"""

from __future__ import annotations

import statistics

from bench import load
from bench.rounds import AT_LEAST, AT_MOST, OURS, Bar, alternate, print_progress, quantile, rounded, row
from bench.rows.against_noop import BATCHES, UNARY, Workload
from bench.servers import Unavailable, liveness, server_process
from liveness.server.edge_listener import edge_is_installed
from tests.free_ports import free_port

P99_HALF, P99_OLD_HALF = "edge: p99 at half its maximum", "edge: p99 at half the maximum of python"
STRAIGHT = "edge: unary, one frontend"
NAMES = {
    f"edge: {UNARY}": "one heartbeat per call, durable, taken in by the edge, against a grpc.aio server that does nothing",
    f"edge: {BATCHES}": "a hundred heartbeats per call, against the same",
    f"edge: {UNARY}, python": "the same against the pure-Python listener",
    f"edge: {BATCHES}, python": "the same against the pure-Python listener",
    P99_HALF: "a heartbeat per call, at a set rate that does not wait for answers; against the pure-Python listener",
    P99_OLD_HALF: "the same, at half of what the pure-Python listener can do",
    STRAIGHT: "one heartbeat per call through one frontend, against straight to the node; both on the edge",
}
BARS = {
    UNARY: Bar(sense=AT_LEAST, value=4.0, aim=10.0),
    BATCHES: Bar(sense=AT_LEAST, value=0.5, aim=1.5),
}
SECONDS = 8
DURABLE = "SQLite, synchronous=FULL: every answer is on disk"


def edge():
    """Run the product with the native edge."""
    return liveness("listener=edge", name="edge")


def require_edge():
    if not edge_is_installed():
        raise Unavailable("the native edge is not installed; build it with make edge")


def measure(plan):
    require_edge()
    with server_process("no-op", "bench.noop_server") as noop, liveness() as python, edge() as native:
        for kind, calls in ((UNARY, plan.sized(3_000, 20)), (BATCHES, plan.sized(300, 10))):
            yield from _compare(plan, kind, calls, noop, python, native)
        yield from _latency(plan, python, native)
    yield from _through_frontend(plan)


def _compare(plan, kind, calls, noop, python, native):
    workloads = {server.name: Workload(kind, calls) for server in (noop, python, native)}
    cpu: dict[str, list[float]] = {name: [] for name in workloads}

    def measured(server):
        workload = workloads[server.name]

        def once():
            before = server.cpu_s()
            found = workload.send_to_noop(server) if server is noop else workload.send_to_ours(server)
            cpu[server.name].append((server.cpu_s() - before) / workload.beats * 1e6)
            return found

        return once

    found = alternate(
        f"edge: {kind}",
        {server.name: measured(server) for server in (noop, python, native)},
        plan.rounds,
        warm=True,
    )
    for server in (python, native):
        workloads[server.name].check_applied(server)
    more = {
        "CPU µs per heartbeat": {name: round(statistics.median(used[1:]), 1) for name, used in cpu.items()}
    }
    notes = [f"load: {load.driver()}", DURABLE]
    name = f"edge: {kind}"
    yield row(name, "heartbeats/s", found, native.name, noop.name, BARS[kind], notes, more)
    yield row(f"{name}, python", "heartbeats/s", found, native.name, python.name, None, notes, more)


def _latency(plan, python, native):
    workloads = {server.name: Workload(UNARY, plan.sized(2_000, 20)) for server in (python, native)}

    def most_of(server):
        workload = workloads[server.name]
        workload.send_to_ours(server)  # warm-up
        return statistics.median(workload.send_to_ours(server) for _ in range(plan.few_rounds))

    def p99(server, rate, halves):
        workload = workloads[server.name]

        def once():
            seconds = max(1.0, SECONDS * min(1.0, plan.scale))
            took_ms = load.at_rate(server.address, workload.method, workload.bodies, rate, seconds)
            halves.setdefault(server.name, []).append(statistics.median(took_ms))
            return quantile(took_ms, 0.99)

        return once

    most = {server.name: most_of(server) for server in (python, native)}
    for name, of, bar, sides in (
        (P99_HALF, native, Bar(sense=AT_MOST, value=10.0, of=OURS), (native,)),
        (P99_OLD_HALF, python, Bar(sense=AT_MOST, value=3.0, of=OURS, aim=2.0), (native, python)),
    ):
        rate = most[of.name] / 2
        print_progress(f"maximum of {of.name} {most[of.name]:,.0f} heartbeats/s; sending {rate:,.0f}/s")
        halves: dict[str, list[float]] = {}
        found = alternate(name, {server.name: p99(server, rate, halves) for server in sides}, plan.few_rounds)
        yield row(
            name,
            "ms, p99",
            found,
            native.name,
            sides[-1].name,
            bar,
            [
                "the maximum is measured first, in the same run",
                "an answer waits for its commit",
                load.driver(),
            ],
            {
                "maximum, heartbeats/s": {which: rounded(rate) for which, rate in most.items()},
                "sent, heartbeats/s": rounded(rate),
                "p50, ms": {which: rounded(statistics.median(values)) for which, values in halves.items()},
            },
        )


def _through_frontend(plan):
    port = free_port()
    with (
        liveness("listener=edge", f"cluster_listen=127.0.0.1:{port}", name="straight") as node,
        server_process("frontend", "bench.frontend_server", f"nodes=127.0.0.1:{port}", "edge") as frontend,
    ):
        # Different workers, so that each way's count is its own.
        ways = {
            "straight": (node, Workload(UNARY, plan.sized(3_000, 20))),
            "frontend": (frontend, Workload(UNARY, plan.sized(3_000, 20), first=500)),
        }
        cpu: dict[str, list[float]] = {name: [] for name in ways}

        def measured(name):
            server, workload = ways[name]

            def once():
                before = node.cpu_s() + frontend.cpu_s()
                found = workload.send_to_ours(server)
                cpu[name].append((node.cpu_s() + frontend.cpu_s() - before) / workload.beats * 1e6)
                return found

            return once

        found = alternate(STRAIGHT, {name: measured(name) for name in ways}, plan.rounds, warm=True)
        for server, workload in ways.values():
            workload.check_applied(server)
        yield row(
            STRAIGHT,
            "heartbeats/s",
            found,
            "frontend",
            "straight",
            Bar(sense=AT_LEAST, value=0.6, aim=0.9),
            [f"load: {load.driver()}", DURABLE, "node, frontend and load share this machine's processors"],
            {
                "CPU µs per heartbeat, of all": {
                    name: round(statistics.median(used[1:]), 1) for name, used in cpu.items()
                }
            },
        )
