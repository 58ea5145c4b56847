"""How much later than its lease a silent worker expires, among a hundred thousand."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import grpc

from bench import load
from bench.event_watch import EventWatch, disable_storm_hold
from bench.messages import batch, batch_request_of, check_batch, heartbeat
from bench.rounds import AT_MOST, OURS, Bar, alternate, quantile, row, spread
from bench.servers import liveness
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse

LATENESS = "expiry lateness p99, 100,000 workers"
NAMES = {
    LATENESS: "how late the verdict is, on the shard's clock and as a watcher sees it; against 12,000 workers"
}
SILENT = 10_000
OVER_S = 10.0
FIRST_S = 4.0
BATCH = 100
REGISTERED_TOGETHER = 500
BEAT_EVERY_S = 30.0


async def _background(channel, numbers, done):
    """Send the heartbeats of the other workers, as a fleet with this interval does."""
    call: Any = channel.unary_unary(load.SERVICE + "RecordWorkerHeartbeats")
    pause = BEAT_EVERY_S / max(1, len(numbers) / BATCH)
    at = 0
    while not done.is_set():
        await call(batch_request_of(numbers[at : at + BATCH]))
        at = (at + BATCH) % len(numbers)
        try:
            await asyncio.wait_for(done.wait(), pause)
        except TimeoutError:
            pass


async def _run(address, others, silent):
    async with grpc.aio.insecure_channel(address) as channel:
        method = "RecordWorkerHeartbeats"
        loop = asyncio.get_running_loop()
        groups = (
            batch_request_of(range(at, min(at + REGISTERED_TOGETHER, others)))
            for at in range(0, others, REGISTERED_TOGETHER)
        )
        await loop.run_in_executor(None, lambda: load.send_all(address, method, groups, None, 8, check_batch))
        watch = EventWatch(channel)
        await watch.begin()
        call: Any = channel.unary_unary(load.SERVICE + method)
        due: dict[str, float] = {}
        for at in range(0, silent, BATCH):
            numbers = range(others + at, others + min(at + BATCH, silent))
            # Spread over some seconds at random: the leases of one call end far apart.
            beats = [
                heartbeat(number, FIRST_S + (number * 7_919 % silent) / silent * OVER_S) for number in numbers
            ]
            answer = RecordWorkerHeartbeatsResponse.FromString(await call(batch(beats)))
            for beat, item in zip(beats, answer.items, strict=True):
                due[beat.worker_instance_key] = item.result.lease_deadline.ToNanoseconds() / 1e9
        done = asyncio.Event()
        beating = asyncio.ensure_future(_background(channel, range(others), done))
        await watch.until(silent)
        done.set()
        await beating
        outside = [(watch.seen[key] - when) * 1_000 for key, when in due.items()]
        return watch.late_ms, outside


def lateness(others, silent):
    with liveness("takeover_grace_ms=0") as server:
        disable_storm_hold(server.address)
        start = time.monotonic()
        late, outside = asyncio.run(_run(server.address, others, silent))
        assert time.monotonic() - start >= FIRST_S
        return late, outside


def measure(plan):
    silent = plan.sized(SILENT, 100)
    sides = {
        "100,000 workers": plan.sized(100_000, 200) - silent,
        "12,000 workers": plan.sized(12_000, 120) - silent,
    }
    p50: dict[str, list[float]] = {name: [] for name in sides}
    outside_p99: dict[str, list[float]] = {name: [] for name in sides}

    def p99(name):
        def once():
            late, outside = lateness(sides[name], silent)
            p50[name].append(statistics.median(late))
            outside_p99[name].append(quantile(outside, 0.99))
            # The clock counts whole milliseconds: 0 would have no ratio.
            return max(1, quantile(late, 0.99))

        return once

    found = alternate(LATENESS, {name: p99(name) for name in sides}, plan.few_rounds)
    yield row(
        LATENESS,
        "ms, p99",
        found,
        "100,000 workers",
        "12,000 workers",
        Bar(sense=AT_MOST, value=100.0, of=OURS),
        [
            (
                f"{silent:,} of them fall silent, their leases end over {OVER_S:.0f} s; the others heartbeat every "
                f"{BEAT_EVERY_S:.0f} s in batches meanwhile; no storm hold"
            ),
            "seen from outside: when a watcher's stream brings the event, against the deadline in the last answer",
        ],
        {
            "p50, ms": {name: spread(values)["median"] for name, values in p50.items()},
            "seen from outside, p99, ms": {
                name: spread(values)["median"] for name, values in outside_p99.items()
            },
        },
    )
