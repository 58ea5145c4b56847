"""How long until a killed worker is detected, and until an available activity reaches a worker.

Detection: workers with and without a stream on one server are killed with `kill -9` at moments spread over a
heartbeat interval; the clock stops when another worker's poll returns their activity. Hand-out: from the call that
schedules an activity to the answer of a waiting poll, against the answer to that same call, which costs the same
commit.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration

from bench.rounds import print_progress, quantile, rounded, row, spread
from bench.servers import server_process
from liveness.v1 import activity_pb2, service_pb2, worker_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub

NAMESPACE = "default"
LEASE_S = 30
GRACE_S = 5
HEARTBEAT_S = LEASE_S / 3
AFTER_START_S = 11
"""A server ends no lease for this long after its start."""


def detection(pairs):
    """Return the seconds from `kill -9` to the hand-out, for workers with a stream and for workers without."""
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{Path(folder, 'bench.db')}"
        with server_process("liveness", "bench.liveness_server", db) as server:
            return asyncio.run(_detect(server.address, pairs))


async def _detect(address, pairs):
    keys = [f"{kind}-{number}" for number in range(pairs) for kind in ("attached", "plain")]
    children = {key: _start(address, key) for key in keys}
    for key, child in children.items():
        if child.stdout.readline().strip() != "holding":
            raise SystemExit(f"worker {key} did not start")
    print_progress("detection: workers hold their activities")
    async with grpc.aio.insecure_channel(address) as channel:
        poller = PollingWorker(channel)
        await poller.register()
        await asyncio.sleep(AFTER_START_S)
        # The delay depends on the moment of death within the heartbeat interval.
        at = {key: random.uniform(0, HEARTBEAT_S) for key in keys}
        received = asyncio.ensure_future(poller.receive(set(keys)))
        start = time.perf_counter()
        killed = {}
        for key in sorted(keys, key=lambda key: at[key]):
            await asyncio.sleep(max(0, at[key] - (time.perf_counter() - start)))
            os.kill(children[key].pid, signal.SIGKILL)
            killed[key] = time.perf_counter()
            children[key].wait()
        found = await received
    took: dict[str, list[float]] = {"attached": [], "plain": []}
    for key, when in found.items():
        took[key.partition("-")[0]].append(when - killed[key])
    return took


def _start(address, key):
    grace = str(GRACE_S) if key.startswith("attached") else ""
    command = [sys.executable, "-m", "bench.worker_process", address, key, grace]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class PollingWorker:
    """A worker that takes over all activities."""

    def __init__(self, channel, task_queue="bench"):
        self.liveness, self.activities = LivenessServiceStub(channel), ActivityServiceStub(channel)
        self.task_queue = task_queue
        self.sequence = 0

    async def register(self):
        self.sequence += 1
        beat = worker_pb2.WorkerHeartbeat(
            worker_instance_key="heir",
            session_id="s",
            sequence=self.sequence,
            task_queue=self.task_queue,
            lease_duration=Duration(seconds=600),
        )
        await self.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat)
        )

    async def poll(self):
        request = activity_pb2.PollActivityRequest(
            namespace=NAMESPACE, worker_instance_key="heir", wait=Duration(seconds=60), max_activities=100
        )
        return (await self.activities.PollActivity(request)).activities

    async def receive(self, keys):
        """Return when each activity was handed out."""
        found: dict[str, float] = {}
        while set(found) != keys:
            for task in await self.poll():
                found.setdefault(task.id.workflow_id, time.perf_counter())
        return found


def handing_out(count):
    """Return the milliseconds from scheduling to the answer of the waiting poll, and to scheduling's own answer."""
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{Path(folder, 'bench.db')}"
        with server_process("liveness", "bench.liveness_server", db) as server:
            return asyncio.run(_hand_out(server.address, count))


async def _hand_out(address, count):
    polled, scheduled = [], []
    async with grpc.aio.insecure_channel(address) as channel:
        poller = PollingWorker(channel)
        await poller.register()
        for number in range(count + 50):
            waiting = asyncio.ensure_future(poller.poll())
            await asyncio.sleep(0.003)  # the poll arrives first
            id = activity_pb2.ActivityId(workflow_id=f"w-{number}", run_id="-", activity_id="a")
            request = activity_pb2.ScheduleActivityRequest(namespace=NAMESPACE, id=id, task_queue="bench")
            start = time.perf_counter()
            await poller.activities.ScheduleActivity(request)
            answered = time.perf_counter()
            [task] = await waiting
            arrived = time.perf_counter()
            await poller.activities.CompleteActivity(
                activity_pb2.CompleteActivityRequest(
                    namespace=NAMESPACE,
                    id=id,
                    worker_instance_key="heir",
                    lease_epoch=task.lease_epoch,
                    attempt=task.attempt,
                )
            )
            if number >= 50:
                polled.append((arrived - start) * 1_000)
                scheduled.append((answered - start) * 1_000)
    return {"polled": polled, "scheduled": scheduled}


DETECTION, HANDING_OUT = "detection after kill -9", "scheduled to polled"
NAMES = {
    DETECTION: "seconds until another worker has what it held, with a stream against without",
    HANDING_OUT: "milliseconds until a waiting poll has it, against the answer to the call that scheduled it",
}


def quantiles(values):
    return {"p50": rounded(statistics.median(values)), "p99": rounded(quantile(values, 0.99))}


def compared(name, unit, found, ours, theirs, notes):
    """Compare many single times, not rounds: the ratio is that of the medians."""
    sides = {side: [statistics.median(values)] for side, values in found.items()}
    made = row(name, unit, sides, ours, theirs, notes=notes)
    made["sides"] = {side: spread(values) for side, values in found.items()}
    made["more"] = {f"{side}, {unit}": quantiles(values) for side, values in found.items()}
    return made


def measure(plan):
    found = detection(plan.sized(8, 2))
    yield compared(
        DETECTION,
        "s",
        {"with a stream": found["attached"], "without": found["plain"]},
        "with a stream",
        "without",
        [
            f"lease {LEASE_S} s, disconnect grace {GRACE_S} s, the defaults; killed at moments spread over an interval"
        ],
    )
    handed = handing_out(plan.sized(500, 50))
    yield compared(
        HANDING_OUT,
        "ms",
        {"poll's answer": handed["polled"], "schedule's answer": handed["scheduled"]},
        "poll's answer",
        "schedule's answer",
        ["one activity at a time, the poll waiting"],
    )
