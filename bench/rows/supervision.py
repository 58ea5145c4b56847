"""What a supervisor costs while nothing happens, and how soon a killed process's job is elsewhere, beside supervisord."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil

from bench.failover_latency import NAMESPACE, PollingWorker
from bench.peers import supervisord
from bench.rounds import AT_MOST, OURS, Bar, alternate, print_progress, quantile, rounded, row
from bench.servers import liveness
from bench.supervised_processes import SILENT, announcing, framing, supervising, wait_until_healthy
from liveness.v1.service_pb2 import DescribeWorkerRequest

IDLE = 200
CPU = f"{IDLE} idle supervised processes, processor"
MEMORY = f"{IDLE} idle supervised processes, memory"
KILLED = "job of a killed supervised process"
IDLE_NAMES = {
    CPU: "the supervisor with its launcher, in percent of one core, against supervisord",
    MEMORY: "the resident memory of the supervisor and its launcher, against supervisord",
}
KILLED_NAMES = {
    KILLED: "from kill -9 until another worker has the job, p99, against supervisord starting the process again"
}
FRAMES, NO_FRAMES, PEER = "with frames", "without frames", "supervisord"
SETTLE_S = 10
WINDOW_S = 30
SLOTS = 5
TICK_S = 0.01
"""Less processor time than the system counts is taken for so much."""
PAUSE_S_MAX = 1.0
KILLS = 120
GROUP = "killed"
MEBIBYTE = 1024 * 1024
ENDLESS_RESTARTS = (
    f"[group.{GROUP}.restart]",
    'min_delay = "0s"',
    'window = "1ms"',
    "total_limit = 1_000_000",
)


# -- idle


def measure_idle(plan):
    count = plan.sized(IDLE, 2)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(liveness())
        sides = {}
        for name, group, script in ((FRAMES, "framing", framing()), (NO_FRAMES, "silent", SILENT)):
            process = stack.enter_context(supervising(folder, server.address, group, script, count))
            wait_until_healthy(server.address, group, count)
            sides[name] = _with_launcher(process.pid)
            print_progress(f"{count} processes {name} are healthy")
        peer = stack.enter_context(supervisord.supervising(folder, SILENT, count))
        sides[PEER] = [psutil.Process(peer.pid)]
        _wait_for_children(sides[PEER][0], count)
        time.sleep(SETTLE_S)
        used: dict[str, list[float]] = {name: [] for name in sides}
        # Processor time belongs to a process, so all sides are measured in the same seconds.
        for number in range(plan.few_rounds):
            start, before = time.perf_counter(), {name: _cpu_s(each) for name, each in sides.items()}
            time.sleep(WINDOW_S)
            took = time.perf_counter() - start
            for name, each in sides.items():
                used[name].append(100 * max(_cpu_s(each) - before[name], TICK_S) / took)
            print_progress(f"{CPU}: round {number + 1} of {plan.few_rounds}")
        memory = {name: [each.memory_full_info() for each in found] for name, found in sides.items()}
    yield row(
        CPU,
        "% of one core",
        used,
        FRAMES,
        PEER,
        Bar(sense=AT_MOST, value=1.0, of=OURS),
        [f"{count} processes per side, at least {WINDOW_S} s; frames come every five seconds"],
        {"processes": count},
    )
    resident = {name: [sum(each.rss for each in found) / MEBIBYTE] for name, found in memory.items()}
    yield row(
        MEMORY,
        "MiB",
        resident,
        FRAMES,
        PEER,
        Bar(sense=AT_MOST, value=100e6 / MEBIBYTE, of=OURS),
        [
            "the sum over the supervisor and its launcher; PSS shares pages among processes, USS counts only own ones"
        ],
        {
            kind: {
                name: rounded(sum(getattr(each, part) for each in found) / MEBIBYTE)
                for name, found in memory.items()
            }
            for kind, part in (("PSS, MiB", "pss"), ("USS, MiB", "uss"))
        },
    )


def _with_launcher(pid):
    supervisor = psutil.Process(pid)
    [launcher] = supervisor.children()
    return [supervisor, launcher]


def _wait_for_children(process, count):
    while len(process.children()) < count:
        time.sleep(0.1)


def _cpu_s(processes):
    return sum(sum(process.cpu_times()[:2]) for process in processes)


# -- killed


def measure_killed(plan):
    kills = plan.sized(KILLS / SLOTS, 1)
    replaced: list[float] = []
    every: dict[str, list[float]] = {}

    def p99(name, measured):
        def once():
            found = measured()
            every.setdefault(name, []).extend(found)
            return quantile(found, 0.99) * 1_000

        return once

    sides = {
        "liveness": p99("liveness", lambda: _ours(kills, replaced)),
        PEER: p99(PEER, lambda: _theirs(kills)),
    }
    found = alternate(KILLED, sides, plan.few_rounds)
    every["liveness, until the process is replaced"] = replaced
    yield row(
        KILLED,
        "ms, p99",
        found,
        "liveness",
        PEER,
        Bar(sense=AT_MOST, value=200.0, of=OURS),
        [
            (
                f"{SLOTS * kills} kills per round in {SLOTS} processes, each up to {PAUSE_S_MAX:g} s after its start; the job's "
                "clock stops when another worker's poll returns it, supervisord's when the new process runs; "
                "neither side waits before it starts a process again"
            )
        ],
        {
            f"{label}, ms": {name: rounded(1_000 * quantile(values, part)) for name, values in every.items()}
            for label, part in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))
        }
        | {"kills": sum(map(len, every.values())) - len(replaced)},
    )


class Announcements:
    """The ids of the newest processes by number, as they announce themselves."""

    def __init__(self, folder):
        self.fifo = Path(folder, "fifo")
        os.mkfifo(self.fifo)
        self._descriptor = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self._waiting: dict[int, asyncio.Queue[tuple[int, float]]] = {}
        self._partial = b""

    def __enter__(self):
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        self._waiting = {slot: asyncio.Queue() for slot in range(SLOTS)}
        return self

    def __exit__(self, *exc_info):
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def next(self, slot):
        """Return the id of the next process, and when it announced itself."""
        async with asyncio.timeout(60):
            return await self._waiting[slot].get()

    def _read(self):
        now = time.perf_counter()
        *lines, self._partial = (self._partial + os.read(self._descriptor, 65_536)).split(b"\n")
        for line in lines:
            slot, pid = map(int, line.split())
            self._waiting[slot].put_nowait((pid, now))


def _ours(kills, replaced):
    """Return the seconds from each kill to the answer of the poll that has the job."""

    async def run():
        with tempfile.TemporaryDirectory() as folder, liveness() as server:
            announcements = Announcements(folder)
            script = announcing(announcements.fifo) + framing('"\\"job-$$\\""')
            with announcements, supervising(folder, server.address, GROUP, script, SLOTS, *ENDLESS_RESTARTS):
                async with grpc.aio.insecure_channel(server.address) as channel:
                    poller = PollingWorker(channel, GROUP)
                    await poller.register()
                    arrivals = Arrivals(poller)
                    slots = (
                        _kill_ours(arrivals, announcements, slot, kills, replaced) for slot in range(SLOTS)
                    )
                    found = await asyncio.gather(*slots)
                    arrivals.task.cancel()
        return [took for each in found for took in each]

    return asyncio.run(run())


class Arrivals:
    """The jobs that the polling worker receives, each with its time."""

    def __init__(self, poller):
        self.liveness = poller.liveness
        self._poller = poller
        self._expected: dict[str, asyncio.Future[float]] = {}
        self.task = asyncio.get_running_loop().create_task(self._run())

    def expect(self, job):
        return self._expected.setdefault(job, asyncio.get_running_loop().create_future())

    async def _run(self):
        while True:
            for task in await self._poller.poll():
                self.expect(task.id.workflow_id).set_result(time.perf_counter())


async def _kill_ours(arrivals, announcements, slot, kills, replaced):
    found = []
    pid, _ = await announcements.next(slot)
    for _ in range(kills):
        job = f"job-{pid}"
        await _wait_until_bound(arrivals.liveness, slot, job)
        await asyncio.sleep(random.uniform(0, PAUSE_S_MAX))
        arrival = arrivals.expect(job)
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            found.append(await arrival - killed)
        pid, at = await announcements.next(slot)
        replaced.append(at - killed)
    return found


async def _wait_until_bound(liveness_stub, slot, job):
    request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=f"worker:{GROUP}:{slot}")
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await liveness_stub.DescribeWorker(request)
                if any(activity.workflow_id == job for activity in answer.worker.bound_activities):
                    return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
            await asyncio.sleep(0.02)


def _theirs(kills):
    """Return the seconds from each kill until the new process runs."""

    async def run():
        with tempfile.TemporaryDirectory() as folder:
            announcements = Announcements(folder)
            script = announcing(announcements.fifo) + SILENT
            with announcements, supervisord.supervising(folder, script, SLOTS):
                slots = (_kill_theirs(announcements, slot, kills) for slot in range(SLOTS))
                found = await asyncio.gather(*slots)
        return [took for each in found for took in each]

    return asyncio.run(run())


async def _kill_theirs(announcements, slot, kills):
    found = []
    pid, _ = await announcements.next(slot)
    for _ in range(kills):
        await asyncio.sleep(random.uniform(0, PAUSE_S_MAX))
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        pid, at = await announcements.next(slot)
        found.append(at - killed)
    return found
