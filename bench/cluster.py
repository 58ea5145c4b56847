"""One to three nodes on one PostgreSQL, straight to the owners and through a frontend; what coalescing gains.

Everything shares the processors of this machine: nodes, PostgreSQL and the load. So more nodes cannot answer more
heartbeats here, and processor time per heartbeat is what tells what a machine per node would do.
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import ExitStack

import grpc

from bench import load, take_over
from bench.clusters import PostgresProcesses, cluster, frontend
from bench.messages import NAMESPACE, SUCCESSES_PER_BEAT, batch_of, heartbeat, unary_request
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.databases import PostgresServer

NAME = "cluster"
NODES = (1, 2, 3)
BATCH = 100
UNARY_BODIES = 12
BATCH_BODIES = 6
STREAMS = {"unary": 16, "batches of 100": 4}
METHODS = {"unary": "RecordWorkerHeartbeat", "batches of 100": "RecordWorkerHeartbeats"}


class Course:
    """One way to send heartbeats to one cluster."""

    def __init__(self, name, cluster, door, kind, first):
        """`door`: the frontend, or None: each heartbeat goes to its owner."""
        self.name, self.cluster, self.door, self.kind = name, cluster, door, kind
        self.targets, self.numbers = [], []
        bodies, size = (UNARY_BODIES, 1) if kind == "unary" else (BATCH_BODIES, BATCH)
        for place in range(bodies):
            node = cluster.nodes[place % len(cluster.nodes)]
            own = cluster.workers(first + place * 1_000, size, None if door else node.address)
            body = unary_request(own[0]) if kind == "unary" else batch_of(own)
            self.targets.append(((door or node).address, body))
            self.numbers += [own[0], own[-1]]
        self.beats_per_call = size
        self.sent = 0
        self.rates: list[float] = []
        self.cpu: dict[str, list[float]] = {"nodes": [], "frontend": [], "postgres": []}
        self.wal: list[float] = []

    def run(self, calls, postgres):
        def used():
            nodes = sum(node.cpu_s() for node in self.cluster.nodes)
            return {
                "nodes": nodes,
                "frontend": self.door.cpu_s() if self.door else 0,
                "postgres": postgres.cpu_s(),
            }

        before, wal = used(), postgres.wal_bytes()
        took = load.run_at(self.targets, METHODS[self.kind], calls, STREAMS[self.kind])
        after = used()
        beats = calls * len(self.targets) * self.beats_per_call
        self.sent += calls
        self.rates.append(beats / took)
        self.wal.append((postgres.wal_bytes() - wal) / beats)
        for part, values in self.cpu.items():
            values.append((after[part] - before[part]) / beats * 1e6)

    def forget(self):
        """What was measured while caches were cold."""
        for values in (self.rates, self.wal, *self.cpu.values()):
            values.clear()

    def check_applied(self):
        """The cluster's own count of successes."""
        with grpc.insecure_channel(self.targets[0][0]) as channel:
            stub = LivenessServiceStub(channel)
            for number in set(self.numbers):
                key = heartbeat(number).worker_instance_key
                request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
                found = stub.DescribeWorker(request, timeout=20).worker.successes
                if found != self.sent * SUCCESSES_PER_BEAT:
                    raise SystemExit(
                        f"{self.name}, {key}: {found} successes recorded for {self.sent} heartbeats answered"
                    )


def measure(scale, rounds):
    with PostgresServer(fsync=True) as postgres:
        heartbeats = measure_heartbeats(postgres, scale, rounds)
    with PostgresServer(fsync=True) as postgres:
        return [*heartbeats, *take_over.measure(postgres, scale, rounds)]


def measure_heartbeats(postgres, scale, rounds):
    results = []
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(cluster(f"{count} node" + "s" * (count > 1), postgres, count))
            for count in NODES
        ]
        processes = PostgresProcesses(postgres)
        last = clusters[-1]
        doors = {how: stack.enter_context(frontend(last, how)) for how in ("coalescing", "alone")}
        for kind, calls in (("unary", int(200 * scale)), ("batches of 100", int(40 * scale))):
            first = 0 if kind == "unary" else 100_000
            courses = [Course(each.name, each, None, kind, first) for each in clusters]
            ways = ("coalescing", "alone") if kind == "unary" else ("coalescing",)
            for place, how in enumerate(ways, 1):
                name = f"{last.name}, frontend" + (", each alone" if how == "alone" else "")
                courses.append(Course(name, last, doors[how], kind, first + place * 20_000))
            alternate(kind, courses, max(calls, 2), rounds, processes)
            results += rows(kind, courses)
    return results


def alternate(kind, courses, calls, rounds, postgres):
    for course in courses:
        course.run(max(calls // 5, 2), postgres)
        course.forget()
    for number in range(rounds):
        for course in courses:
            course.run(calls, postgres)
        print(f"  cluster, {kind}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for course in courses:
        course.check_applied()


def rows(kind, courses):
    by_name = {course.name: course for course in courses}
    return [
        row(kind, course, by_name[f"{course.name}, each alone"])
        if f"{course.name}, each alone" in by_name
        else row(kind, course, courses[0])
        for course in courses
    ]


def row(kind, course, other):
    """`other`: what it is compared with, round by round."""
    ratios = [mine / theirs for mine, theirs in zip(course.rates, other.rates, strict=True)]
    work = [sum(parts) for parts in zip(*course.cpu.values(), strict=True)]
    others = [sum(parts) for parts in zip(*other.cpu.values(), strict=True)]
    return {
        "row": f"{NAME}: {kind}, {course.name}",
        "against": other.name,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "heartbeats_per_s": round(statistics.median(course.rates)),
        "cpu_us": {part: round(statistics.median(values), 1) for part, values in course.cpu.items()},
        "cpu_ratio": round(statistics.median(work) / statistics.median(others), 3),
        "wal_bytes": round(statistics.median(course.wal), 1),
    }


def show(results):
    heartbeats = [result for result in results if "heartbeats_per_s" in result]
    if heartbeats:
        print(
            f"\nclusters on one PostgreSQL (fsync on); nodes, frontend, PostgreSQL and load share {os.cpu_count()} "
            f"processors; load: {load.driver()}\n"
        )
        print(
            f"{'':54}{'beats/s':>9}{'ratio':>7}{'spread':>14}  {'against':28}"
            f"{'CPU us per heartbeat: nodes':>28}{'frontend':>10}{'postgres':>10}{'ratio':>7}{'WAL bytes':>11}"
        )
    for r in heartbeats:
        spread = f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}"
        cpu = r["cpu_us"]
        print(
            f"{r['row']:54}{r['heartbeats_per_s']:>9,}{r['ratio']:>7.2f}{spread:>14}  {r['against']:28}"
            f"{cpu['nodes']:>28}{cpu['frontend']:>10}{cpu['postgres']:>10}{r['cpu_ratio']:>7.2f}{r['wal_bytes']:>11}"
        )
    take_over.show([result for result in results if "heartbeats_per_s" not in result])
