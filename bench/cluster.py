"""One to three nodes on one PostgreSQL, directly and through a frontend, with and without coalescing.

Nodes, PostgreSQL and load share the processors of this machine. So more nodes cannot answer more heartbeats here, and
the processor time per heartbeat shows what one machine per node would do.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack

import grpc

from bench import load
from bench.cluster_processes import PostgresProcesses, cluster, frontend
from bench.messages import NAMESPACE, SUCCESSES_PER_BEAT, batch_request_of, heartbeat, unary_request
from bench.rounds import print_progress, rounded, row
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
LAST = f"{NODES[-1]} nodes"
FRONTEND, ALONE = f"{LAST}, frontend", f"{LAST}, frontend, each alone"
NODE_NAMES = tuple(f"{count} node" + "s" * (count > 1) for count in NODES)
NAMES = {
    f"{NAME}: {kind}, {name}": f"heartbeats/s against {against}"
    for kind in METHODS
    for name, against in (
        *((name, NODE_NAMES[0]) for name in NODE_NAMES),
        (FRONTEND, "the same without coalescing" if kind == "unary" else NODE_NAMES[0]),
        *([(ALONE, NODE_NAMES[0])] if kind == "unary" else []),
    )
}


class Workload:
    """One way to send heartbeats to one cluster."""

    def __init__(self, name, cluster, frontend_process, kind, first):
        """`frontend_process`: the frontend; None sends each heartbeat to its owner."""
        self.name, self.cluster, self.frontend_process, self.kind = name, cluster, frontend_process, kind
        self.targets, self.numbers = [], []
        bodies, size = (UNARY_BODIES, 1) if kind == "unary" else (BATCH_BODIES, BATCH)
        for index in range(bodies):
            node = cluster.nodes[index % len(cluster.nodes)]
            own = cluster.workers(first + index * 1_000, size, None if frontend_process else node.address)
            body = unary_request(own[0]) if kind == "unary" else batch_request_of(own)
            self.targets.append(((frontend_process or node).address, body))
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
                "frontend": self.frontend_process.cpu_s() if self.frontend_process else 0,
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
        """Forget what was measured while caches were cold."""
        for values in (self.rates, self.wal, *self.cpu.values()):
            values.clear()

    def check_applied(self):
        """Compare the cluster's own count of successes."""
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


def measure(plan):
    with PostgresServer(fsync=True) as postgres:
        yield from measure_heartbeats(postgres, plan.scale, plan.few_rounds)


def measure_heartbeats(postgres, scale, rounds):
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(cluster(name, postgres, count))
            for name, count in zip(NODE_NAMES, NODES, strict=True)
        ]
        processes = PostgresProcesses(postgres)
        last = clusters[-1]
        frontends = {how: stack.enter_context(frontend(last, how)) for how in ("coalescing", "alone")}
        for kind, calls in (("unary", int(200 * scale)), ("batches of 100", int(40 * scale))):
            first = 0 if kind == "unary" else 100_000
            workloads = [Workload(each.name, each, None, kind, first) for each in clusters]
            ways = ("coalescing", "alone") if kind == "unary" else ("coalescing",)
            for index, how in enumerate(ways, 1):
                name = ALONE if how == "alone" else FRONTEND
                workloads.append(Workload(name, last, frontends[how], kind, first + index * 20_000))
            alternate(kind, workloads, max(calls, 2), rounds, processes)
            yield from rows(kind, workloads)


def alternate(kind, workloads, calls, rounds, postgres):
    for workload in workloads:
        workload.run(max(calls // 5, 2), postgres)
        workload.forget()
    for number in range(rounds):
        for workload in workloads:
            workload.run(calls, postgres)
        print_progress(f"cluster, {kind}: round {number + 1} of {rounds}")
    for workload in workloads:
        workload.check_applied()


def rows(kind, workloads):
    by_name = {workload.name: workload for workload in workloads}
    for workload in workloads:
        other = by_name.get(ALONE, workloads[0]) if workload.name == FRONTEND else workloads[0]
        yield compared(kind, workload, other)


def compared(kind, workload, other):
    """`other`: the workload to compare with, round by round."""
    work = [sum(parts) for parts in zip(*workload.cpu.values(), strict=True)]
    others = [sum(parts) for parts in zip(*other.cpu.values(), strict=True)]
    cpu = {part: rounded(statistics.median(values)) for part, values in workload.cpu.items()}
    return row(
        f"{NAME}: {kind}, {workload.name}",
        "heartbeats/s",
        {workload.name: workload.rates, other.name: other.rates},
        workload.name,
        other.name,
        notes=[
            (
                f"one PostgreSQL (fsync on); nodes, frontend, PostgreSQL and load share {os.cpu_count()} processors, so that "
                "processor time per heartbeat tells what machines of their own would do"
            ),
        ],
        more={
            "nodes": len(workload.cluster.nodes),
            "CPU µs per heartbeat": cpu,
            "CPU, ratio": rounded(statistics.median(work) / statistics.median(others)),
            "disk, bytes of WAL per heartbeat": rounded(statistics.median(workload.wal)),
            "memory, MiB per node": rounded(
                statistics.mean(node.resident_bytes() for node in workload.cluster.nodes) / 2**20
            ),
        },
    )
