"""Durable heartbeats against a grpc.aio server that does nothing with the same messages: the limit."""

from __future__ import annotations

import statistics

import grpc

from bench import load
from bench.messages import NAMESPACE, SUCCESSES_PER_BEAT, batch_request, heartbeat, unary_request
from bench.rounds import AT_LEAST, Bar, alternate, row
from bench.servers import liveness, server_process
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub

UNARY, BATCHES = "unary", "batches of 100"
NAMES = {
    UNARY: "one heartbeat per call, durable, against a server that does nothing",
    BATCHES: "a hundred heartbeats per call, against the same",
}
BODIES = 8
BATCH = 100


class Workload:
    """One way to send heartbeats, always of the same workers."""

    def __init__(self, name, calls, first=0):
        """`first`: the number of its first worker."""
        self.name, self.calls = name, calls
        single = name == UNARY
        self.method = "RecordWorkerHeartbeat" if single else "RecordWorkerHeartbeats"
        self.streams = 16 if single else 4
        self.size = 1 if single else BATCH
        self.first = first if single else first + 1_000
        self.bodies = [
            unary_request(first + index) if single else batch_request(self.first + index * BATCH, BATCH)
            for index in range(BODIES)
        ]
        self.sent = 0
        """Calls per body that our server has answered."""

    @property
    def beats(self):
        return self.calls * BODIES * self.size

    def send(self, to, reply_bytes=None):
        """Return heartbeats per second."""
        took = load.run(to.address, self.method, self.bodies, self.calls, self.streams, reply_bytes)
        return self.beats / took

    def send_to_ours(self, ours):
        found = self.send(ours)
        self.sent += self.calls
        return found

    def send_to_noop(self, noop):
        """Send to the no-op server, whose answers are all equal, so that their size proves that each call succeeded."""
        return self.send(noop, load.reply_bytes_of(noop.address, self.method, self.bodies[0]))

    def check_applied(self, ours):
        """Check by the server's own count of successes that every call was applied."""
        with grpc.insecure_channel(ours.address) as channel:
            stub = LivenessServiceStub(channel)
            for number in range(self.first, self.first + BODIES * self.size):
                key = heartbeat(number).worker_instance_key
                request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
                found = stub.DescribeWorker(request).worker.successes
                if found != self.sent * SUCCESSES_PER_BEAT:
                    raise SystemExit(f"{key}: {found} successes recorded for {self.sent} heartbeats answered")


def measure(plan):
    with server_process("no-op", "bench.noop_server") as noop, liveness() as ours:
        yield _compare(
            plan,
            ours,
            noop,
            Workload(UNARY, plan.sized(1_000, 20)),
            Bar(sense=AT_LEAST, value=0.75, aim=0.85),
        )
        yield _compare(
            plan,
            ours,
            noop,
            Workload(BATCHES, plan.sized(300, 10)),
            Bar(sense=AT_LEAST, value=0.30, aim=0.45),
        )


def _compare(plan, ours, noop, workload, bar):
    cpu: dict[str, list[float]] = {"no-op": [], "liveness": []}

    def measured(to, send):
        def once():
            before = to.cpu_s()
            found = send(to)
            cpu[to.name].append((to.cpu_s() - before) / workload.beats * 1e6)
            return found

        return once

    sides = {
        "no-op": measured(noop, workload.send_to_noop),
        "liveness": measured(ours, workload.send_to_ours),
    }
    found = alternate(workload.name, sides, plan.rounds, warm=True)
    workload.check_applied(ours)
    used = {name: round(statistics.median(values[1:]), 1) for name, values in cpu.items()}
    return row(
        workload.name,
        "heartbeats/s",
        found,
        "liveness",
        "no-op",
        bar,
        [f"load: {load.driver()}", "SQLite, synchronous=FULL: every answer is on disk"],
        {"CPU µs per heartbeat": used},
    )
