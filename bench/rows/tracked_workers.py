"""A thousand to a million tracked workers: heartbeats/s, memory, disk, and the recovery of a killed server."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from bench import load
from bench.messages import batch_request_of, check_batch, unary_request
from bench.rounds import AT_LEAST, AT_MOST, OURS, Bar, alternate, print_progress, rounded, row
from bench.servers import server_process

COUNTS = (1_000, 10_000, 100_000, 1_000_000)


def row_name(count):
    return f"{count:,} tracked workers"


ALONE = f"{row_name(COUNTS[-1])}, unary"
MEMORY, RECOVERY = "memory per tracked worker", "recovery of 1,000,000 workers"
NAMES = {
    **{row_name(count): "heartbeats/s in batches of 100 from all of them, against 1,000" for count in COUNTS},
    ALONE: "heartbeats/s, one per call, against 1,000",
    MEMORY: "resident memory of the server process, from 1,000 workers on",
    RECOVERY: "from the start after kill -9 until a heartbeat is answered, against 1,000 workers",
}
BATCH = 100
REGISTERED_TOGETHER = 500
AT_ONCE = 8
AT_ONCE_ALONE = 64
BODIES_MAX = 1_000
SINGLE_MAX = 10_000
BASE = 1_000


class TrackedWorkers:
    """A server that tracks this many workers."""

    def __init__(self, folder, count, stack):
        self.name, self.count = row_name(count), count
        self._db = Path(folder, f"{count}.db")
        self._stack = stack
        self.start()

    def start(self):
        self._process_stack = self._stack.enter_context(ExitStack())
        url = f"sqlite:///{self._db}"
        self.server = self._process_stack.enter_context(
            server_process(self.name, "bench.liveness_server", url)
        )

    def register(self, actual):
        """`actual`: the number of workers at this scale."""
        self.actual = actual
        # The lasting memory of the first calls does not belong to the workers.
        base = min(BASE, actual // 2)
        start = time.perf_counter()
        self._register(range(base))
        before = self.server.resident_bytes()
        some = max(base, actual // 10)
        self._register(range(base, some))
        between = self.server.resident_bytes()
        self._register(range(some, actual))
        self.registered_per_s = actual / (time.perf_counter() - start)
        after = self.server.resident_bytes()
        self.memory = (after - before) / (actual - base)
        self.memory_of_more = (after - between) / (actual - some)
        """Measured after the database's cache is full, which does not grow with the workers."""
        self._register(range(actual))
        self.memory_after_beats = (self.server.resident_bytes() - before) / (actual - base)
        drawn = random.Random(1)
        numbers = drawn.sample(range(actual), min(actual, BODIES_MAX * BATCH))
        self._bodies = [batch_request_of(numbers[at : at + BATCH]) for at in range(0, len(numbers), BATCH)]
        self._single = [unary_request(number) for number in numbers[:SINGLE_MAX]]
        print_progress(f"{self.name}: {actual:,} are there")

    def _register(self, numbers):
        bodies = (
            batch_request_of(numbers[at : at + REGISTERED_TOGETHER])
            for at in range(0, len(numbers), REGISTERED_TOGETHER)
        )
        load.send_all(self.server.address, "RecordWorkerHeartbeats", bodies, None, AT_ONCE, check_batch)

    def beat(self, calls):
        """Return heartbeats per second."""
        took, _ = load.send_all(
            self.server.address, "RecordWorkerHeartbeats", self._bodies, calls, AT_ONCE, check_batch
        )
        return calls * BATCH / took

    def beat_alone(self, calls):
        took, _ = load.send_all(
            self.server.address, "RecordWorkerHeartbeat", self._single, calls, AT_ONCE_ALONE
        )
        return calls / took

    def disk_bytes(self):
        """Return the bytes of all its files, per worker."""
        return sum(file.stat().st_size for file in self._db.parent.glob(f"{self._db.name}*")) / self.actual

    def kill_and_recover(self):
        """Return the seconds from the start of the process, with its interpreter, to the first answer."""
        self.server.process.kill()
        self.server.process.wait()
        self._process_stack.close()
        start = time.perf_counter()
        self.start()
        with grpc.insecure_channel(self.server.address) as channel:
            call: Any = channel.unary_unary("/liveness.v1.LivenessService/RecordWorkerHeartbeat")
            call(unary_request(0), timeout=60)
        return time.perf_counter() - start


def measure(plan):
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleets = [TrackedWorkers(folder, count, stack) for count in COUNTS]
        for fleet in fleets:
            fleet.register(plan.sized(fleet.count, BATCH))
        few, many = fleets[0], fleets[-1]
        yield from _rates(plan, fleets)
        yield _alone(plan, few, many)
        yield _memory(fleets)
        times = {fleet.name: fleet.kill_and_recover for fleet in (few, many)}
        found = alternate(RECOVERY, times, plan.few_rounds)
        yield row(
            RECOVERY,
            "s",
            found,
            many.name,
            few.name,
            Bar(sense=AT_MOST, value=10.0, of=OURS, aim=5.0),
            ["kill -9, then a new process: interpreter, imports, rows, the log since the last checkpoint"],
            {"workers": many.actual, "memory then, bytes per worker": _memory_again(few, many)},
        )


def _rates(plan, fleets):
    calls = plan.sized(1_500, 20)
    written: dict[str, list[float]] = {fleet.name: [] for fleet in fleets}

    def rate(fleet):
        def once():
            before = fleet.server.written_bytes()
            found = fleet.beat(calls)
            written[fleet.name].append((fleet.server.written_bytes() - before) / (calls * BATCH))
            return found

        return once

    sides = {fleet.name: rate(fleet) for fleet in fleets}
    found = alternate("tracked workers", sides, plan.rounds, warm=True)
    base = fleets[0].name
    for fleet in fleets:
        yield row(
            fleet.name,
            "heartbeats/s",
            {side: found[side] for side in dict.fromkeys((fleet.name, base))},
            fleet.name,
            base,
            Bar(sense=AT_LEAST, value=0.8, aim=0.95) if fleet is fleets[-1] else None,
            ["batches of 100 workers drawn from all of them, from a grpc.aio client"],
            {
                "workers": fleet.actual,
                "memory, bytes per worker": rounded(fleet.memory),
                "disk, bytes per heartbeat": rounded(statistics.median(written[fleet.name][1:])),
                "disk, bytes per worker": rounded(fleet.disk_bytes()),
                "registered, workers/s": rounded(fleet.registered_per_s),
            },
        )


def _alone(plan, few, many):
    calls = plan.sized(6_000, 20)
    sides = {fleet.name: partial(fleet.beat_alone, calls) for fleet in (few, many)}
    return row(
        ALONE,
        "heartbeats/s",
        alternate(ALONE, sides, plan.rounds, warm=True),
        many.name,
        few.name,
        Bar(sense=AT_LEAST, value=0.9),
        [f"one worker per call, {AT_ONCE_ALONE} under way, from a grpc.aio client"],
        {"tracked": many.actual},
    )


def _memory(fleets):
    many, fewer = fleets[-1], fleets[-2]
    found = {many.name: [many.memory], fewer.name: [fewer.memory]}
    return row(
        MEMORY,
        "bytes",
        found,
        many.name,
        fewer.name,
        Bar(sense=AT_MOST, value=800.0, of=OURS, aim=400.0),
        [
            (
                "once per size: the difference of resident memory over the difference of workers, as they registered; "
                "with it comes the cache of the database, 64 MiB whatever their number"
            )
        ],
        {
            "of the last nine tenths alone, bytes": {
                each.name: rounded(each.memory_of_more) for each in (many, fewer)
            },
            "after another heartbeat of each, bytes": {
                each.name: rounded(each.memory_after_beats) for each in (many, fewer)
            },
        },
    )


def _memory_again(few, many):
    return rounded(
        (many.server.resident_bytes() - few.server.resident_bytes()) / max(1, many.actual - few.actual)
    )
