"""Temporal through the bridge, against Temporal itself: what a call costs more, and how soon lost work runs again."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from bench import load
from bench.peers import temporal
from bench.rounds import alternate, quantile, row
from tests.system.temporal.stage import Stage, Temporal, WorkerProcess, plan, stuck

CALLS, LATENCY, KILLED = "bridge, calls", "bridge, latency of a call", "bridge, killed worker"
NAMES = {
    CALLS: "worker heartbeats per second through the bridge, each recorded, against Temporal directly",
    LATENCY: "one DescribeNamespace after the other through the bridge against Temporal directly, p50",
    KILLED: "kill -9 until another worker has the activity, through the bridge against Temporal alone",
}
BRIDGE, DIRECT = "through the bridge", "directly"
BODIES = 4
START_TO_CLOSE_S = 15
DESCRIBE = "/temporal.api.workflowservice.v1.WorkflowService/DescribeNamespace"
DESCRIBE_DEFAULT = b"\x0a\x07default"


def measure(work):
    with temporal.serving() as peer, tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), Temporal(peer.address))
        try:
            yield _calls(work, stage, peer)
            yield _latency(work, stage, peer)
            yield _killed(work, stage, Path(folder))
        finally:
            stage.stop()


def _calls(work, stage, peer):
    calls, bodies = work.sized(300, 10), temporal.bodies(BODIES, 1)

    def side(address):
        def once():
            took = load.run(address, temporal.METHOD, bodies, calls, 8, temporal.REPLY_BYTES)
            return calls * BODIES / took

        return once

    found = alternate(
        CALLS, {DIRECT: side(peer.address), BRIDGE: side(stage.address)}, work.rounds, warm=True
    )
    return row(
        CALLS, "calls/s", found, BRIDGE, DIRECT, notes=["the bridge is one Python process on one core"]
    )


def _latency(work, stage, peer):
    calls = work.sized(500, 20)
    p99: dict[str, list[float]] = {BRIDGE: [], DIRECT: []}

    def side(name, address):
        def once():
            with grpc.insecure_channel(address) as channel:
                call: Any = channel.unary_unary(DESCRIBE)
                call(DESCRIBE_DEFAULT, timeout=30)
                took = []
                for _ in range(calls):
                    started = time.perf_counter()
                    call(DESCRIBE_DEFAULT, timeout=30)
                    took.append((time.perf_counter() - started) * 1e3)
            p99[name].append(quantile(took, 0.99))
            return quantile(took, 0.5)

        return once

    sides = {DIRECT: side(DIRECT, peer.address), BRIDGE: side(BRIDGE, stage.address)}
    found = alternate(LATENCY, sides, work.rounds)
    more = {"p99 ms": {name: round(quantile(values, 0.5), 2) for name, values in p99.items()}}
    return row(LATENCY, "ms", found, BRIDGE, DIRECT, more=more)


def _killed(work, stage, folder):
    with _flows(stage.temporal, folder) as flows:

        def side(address):
            def once():
                return _kill_once(stage, address, flows, folder)

            return once

        sides = {DIRECT: side(stage.temporal.address), BRIDGE: side(stage.address)}
        found = alternate(KILLED, sides, work.few_rounds)
    notes = [
        f"the activity sends no heartbeats; its start-to-close time-out is {START_TO_CLOSE_S} s, so that the comparison ends",
        "with a time-out of 600 s, Temporal alone took 598.5 s; the bridge takes as long as here",
        "worker heartbeats every second; the grace after a broken connection is 2 s",
    ]
    return row(KILLED, "s", found, BRIDGE, DIRECT, notes=notes)


@contextmanager
def _flows(server, folder):
    flows = WorkerProcess(server.address, "flows", folder, workflows=True, activities=False)
    try:
        flows.wait_event("running")
        yield "flows"
    finally:
        flows.kill()
        flows.stop()


def _kill_once(stage, address, flows, folder):
    task_queue = f"queue-{time.monotonic_ns()}"
    first = WorkerProcess(address, task_queue, folder)
    first.wait_event("running")
    activity = stuck("a", folder / "never")
    stage.temporal.start(plan(task_queue, activity, start_to_close=START_TO_CLOSE_S), flows=flows)
    first.wait_event("started", attempt=1)
    second = WorkerProcess(address, task_queue, folder)
    try:
        second.wait_event("running")
        first.kill()
        killed = time.perf_counter()
        second.wait_event("started", attempt=2)
        return time.perf_counter() - killed
    finally:
        for worker in (first, second):
            worker.kill()
            worker.stop()
