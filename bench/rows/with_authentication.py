"""Heartbeats with a token at a server that asks who calls, against heartbeats without one at a server that does not ask."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager

import msgspec

from bench import http2_load
from bench.authentication_servers import Sides
from bench.load import SERVICE
from bench.messages import batch_request, unary_request
from bench.rounds import AT_LEAST, Bar, median_ratios, print_progress, rounded, row

UNARY, BATCHES, FRONTEND = (
    "unary with a token",
    "batches of 100 with a token",
    "unary with a token, frontend",
)
NAMES = {
    UNARY: "one heartbeat per call, durable, with a token against without authentication",
    BATCHES: "a hundred heartbeats per call, with a token against without authentication",
    FRONTEND: "one heartbeat per call through a frontend, with a token against without authentication",
}
CONNECTIONS = 8
BATCH = 100
WINDOWS_PER_ROUND = 40
ASKED, NOT_ASKED = "with a token", "without authentication"
NOTES = (
    "load: a bare HTTP/2 client; SQLite, synchronous=FULL: every answer is on disk",
    (
        f"both servers, and both frontends, run in one process, of which there are two with opposite orders of starting; "
        f"{WINDOWS_PER_ROUND} windows of about 60 ms per process, side and round, by turns; the ratio of a round is the median of "
        "the ratios of its windows"
    ),
)


def measure(plan):
    with _servers() as plain_first, _servers("--asking-first") as asking_first:
        batches = [batch_request(10_000 + index * BATCH, BATCH) for index in range(CONNECTIONS)]
        singles = [unary_request(index) for index in range(CONNECTIONS)]
        for name, method, bodies, beats, calls, streams, at in (
            (UNARY, "RecordWorkerHeartbeat", singles, 1, 24, 8, "node"),
            (BATCHES, "RecordWorkerHeartbeats", batches, BATCH, 6, 2, "node"),
            (FRONTEND, "RecordWorkerHeartbeat", singles, 1, 24, 8, "frontend"),
        ):
            with ExitStack() as stack:
                pairs = [
                    _Pair(stack, servers, at, SERVICE + method, bodies, streams, plan.sized(calls, 2), beats)
                    for servers in (plain_first, asking_first)
                ]
                yield _compare(plan, name, pairs)


class _Pair:
    """The two servers, or frontends, of one process, with a connection for each body."""

    def __init__(self, stack, servers, at, path, bodies, streams, calls, beats):
        self._pid, sides = servers
        self._calls, self._beats = calls, beats * calls * len(bodies)
        headers = (("authorization", f"Bearer {sides.asking.token}"),)
        self._connections = {
            side: [
                stack.enter_context(closing(http2_load.Connection(address, path, body, streams, sent)))
                for body in bodies
            ]
            for side, address, sent in (
                (NOT_ASKED, getattr(sides.plain, at), ()),
                (ASKED, getattr(sides.asking, at), headers),
            )
        }
        for connections in self._connections.values():
            http2_load.run(connections, calls * 5)

    def window(self, side):
        """Return the heartbeats per second, and per second of processor time."""
        before = _processor_s(self._pid)
        took = http2_load.run(self._connections[side], self._calls)
        return self._beats / took, self._beats / (_processor_s(self._pid) - before)


def _compare(plan, name, pairs):
    """Each window of a side is the geometric mean of one in each process, so that the order of starting cancels out."""
    rates: dict[str, list[float]] = {ASKED: [], NOT_ASKED: []}
    per_cpu_s: dict[str, list[float]] = {ASKED: [], NOT_ASKED: []}
    for number in range(plan.rounds * WINDOWS_PER_ROUND):
        order = (ASKED, NOT_ASKED) if number % 2 else (NOT_ASKED, ASKED)
        found = [{side: pair.window(side) for side in order} for pair in pairs]
        for side in order:
            rates[side].append(statistics.geometric_mean(each[side][0] for each in found))
            per_cpu_s[side].append(statistics.geometric_mean(each[side][1] for each in found))
        if (number + 1) % WINDOWS_PER_ROUND == 0:
            print_progress(f"{name}: round {(number + 1) // WINDOWS_PER_ROUND} of {plan.rounds}")
    ours, theirs, ratios = median_ratios(rates[ASKED], rates[NOT_ASKED], plan.rounds)
    _, _, cpu_ratios = median_ratios(per_cpu_s[ASKED], per_cpu_s[NOT_ASKED], plan.rounds)
    return row(
        name,
        "heartbeats/s",
        {NOT_ASKED: theirs, ASKED: ours},
        ASKED,
        NOT_ASKED,
        Bar(sense=AT_LEAST, value=0.95),
        NOTES,
        {
            "CPU µs per heartbeat": {
                side: round(1e6 / statistics.median(values), 1) for side, values in per_cpu_s.items()
            },
            "heartbeats per CPU second, ratio": rounded(statistics.median(cpu_ratios)),
        },
        ratios,
    )


def _processor_s(pid):
    """Return the processor time so far to the nanosecond, of all threads. The clock's number is Linux's for a process."""
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def _servers(*options):
    command = [sys.executable, "-m", "bench.authentication_servers", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip():
                raise SystemExit("the servers (bench.authentication_servers) did not start")
            yield process.pid, msgspec.json.decode(line, type=Sides)
        finally:
            process.terminate()
            process.wait(60)
