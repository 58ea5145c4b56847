"""make bench: durable heartbeats against a server that does nothing; how fast lost work moves on; clusters."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import grpc

from bench import cluster, load, moving_on
from bench.messages import NAMESPACE, SUCCESSES_PER_BEAT, batch_request, heartbeat, unary_request
from bench.sides import side
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub

BODIES = 8
BATCH = 100


class Row:
    """One comparison: what is sent, and the least that we hold ourselves to."""

    def __init__(self, name, method, bodies, beats_per_call, calls, streams, bar, aim):
        self.name, self.method, self.bodies, self.beats_per_call = name, method, bodies, beats_per_call
        self.calls, self.streams, self.bar, self.aim = calls, streams, bar, aim


def rows(scale):
    unary = [unary_request(number) for number in range(BODIES)]
    batches = [batch_request(1_000 + place * BATCH, BATCH) for place in range(BODIES)]
    return [
        Row("unary", "RecordWorkerHeartbeat", unary, 1, int(1_000 * scale), 16, 0.75, 0.85),
        Row("batches of 100", "RecordWorkerHeartbeats", batches, BATCH, int(300 * scale), 4, 0.30, 0.45),
    ]


def measure(row, sides, rounds):
    """Alternate between the sides; returns per side the heartbeats per second and CPU microseconds per heartbeat."""
    rates: dict[str, list[float]] = {s.name: [] for s in sides}
    cpu: dict[str, list[float]] = {s.name: [] for s in sides}
    for s in sides:
        load.run(s.address, row.method, row.bodies, max(row.calls // 10, 20), row.streams)
    for number in range(rounds):
        for s in sides:
            before = s.cpu_s()
            took = load.run(s.address, row.method, row.bodies, row.calls, row.streams)
            beats = row.calls * len(row.bodies) * row.beats_per_call
            rates[s.name].append(beats / took)
            if before is not None:
                cpu[s.name].append((s.cpu_s() - before) / beats * 1e6)
        print(f"  {row.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return rates, cpu


def applied(address, row, calls):
    """Every call must have been applied: the server's own count of successes says so."""
    first = 0 if row.beats_per_call == 1 else 1_000
    with grpc.insecure_channel(address) as channel:
        stub = LivenessServiceStub(channel)
        for number in range(first, first + len(row.bodies) * row.beats_per_call):
            key = heartbeat(number).worker_instance_key
            worker = stub.DescribeWorker(
                DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
            ).worker
            if worker.successes != calls * SUCCESSES_PER_BEAT:
                raise SystemExit(
                    f"{key}: {worker.successes} successes recorded for {calls} heartbeats answered"
                )


def compare(row, ours, noop, rounds):
    rates, cpu = measure(row, [noop, ours], rounds)
    applied(ours.address, row, max(row.calls // 10, 20) + rounds * row.calls)
    ratios = [mine / theirs for mine, theirs in zip(rates[ours.name], rates[noop.name], strict=True)]
    return {
        "row": row.name,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "bar": row.bar,
        "aim": row.aim,
        "met": statistics.median(ratios) >= row.bar,
        "liveness_per_s": round(statistics.median(rates[ours.name])),
        "noop_per_s": round(statistics.median(rates[noop.name])),
        "liveness_cpu_us": round(statistics.median(cpu[ours.name]), 1) if cpu[ours.name] else None,
        "noop_cpu_us": round(statistics.median(cpu[noop.name]), 1) if cpu[noop.name] else None,
    }


def show(results):
    print(
        f"\nheartbeats/s, liveness (SQLite, synchronous=FULL) against a no-op grpc.aio server; load: {load.driver()}\n"
    )
    print(
        f"{'':16}{'liveness':>12}{'no-op':>12}{'ratio':>8}{'spread':>16}{'bar':>7}{'aim':>7}   CPU us per heartbeat"
    )
    for r in results:
        spread = f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}"
        verdict = "met" if r["met"] else "MISSED"
        print(
            f"{r['row']:16}{r['liveness_per_s']:>12,}{r['noop_per_s']:>12,}{r['ratio']:>8.2f}{spread:>16}"
            f"{r['bar']:>7.2f}{r['aim']:>7.2f}   {r['liveness_cpu_us']} / {r['noop_cpu_us']}   {verdict}"
        )


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements per side (default 5)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="calls per measurement, relative (default 1)"
    )
    parser.add_argument(
        "--only", help="run only rows whose name contains this (unary, batches of 100, moving on, cluster)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    chosen = [row for row in rows(args.scale) if not args.only or args.only in row.name]
    results = heartbeats(chosen, args.rounds) if chosen else []
    moved = moving_on.measure(args.scale) if not args.only or args.only in "moving on" else []
    clusters = cluster.measure(args.scale, args.rounds) if not args.only or args.only in cluster.NAME else []
    if args.json:
        print(json.dumps([*results, *moved, *clusters], indent=2))
        return
    if results:
        show(results)
    moving_on.show(moved)
    cluster.show(clusters)


def heartbeats(chosen, rounds):
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{Path(folder, 'bench.db')}"
        with (
            side("no-op", "bench.noop_server") as noop,
            side("liveness", "bench.liveness_server", db) as ours,
        ):
            return [compare(row, ours, noop, rounds) for row in chosen]


if __name__ == "__main__":
    main()
