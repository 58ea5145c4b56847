"""A worker that knows several ways to the server, and goes on by another when the one it has taken fails.

The ways are proxies to one server, which stand for nodes that serve the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from signal import SIGTERM

import pytest

from liveness.v1 import worker_pb2
from tests.end_to_end.server_process import ServerProcess
from tests.sdk.servers import free_address
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.proxy import Proxy, Way
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.workers import Crew, WorkerProcess, until

LEASE = 3.0
GRACE = 1.0
SILENCE_GRACE = 2.0
"""Where a node does not say that it is gone, which takes half the grace to find out."""
ROUNDS = 6
PORTION = 10
"""Finished between two failures, at least."""
ACTIVE = worker_pb2.WORKER_STATE_ACTIVE

Harm = Callable[[Proxy], None]

HARMS = [
    pytest.param(Proxy.vanish, GRACE, id="killed"),
    pytest.param(Proxy.black_hole, SILENCE_GRACE, id="unreachable"),
    pytest.param(partial(Proxy.black_hole, way=Way.HOLD), SILENCE_GRACE, id="hung"),
]


@asynccontextmanager
async def ways(crew: Crew, number: int) -> AsyncIterator[list[Proxy]]:
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(crew.address)) for _ in range(number)]
        stack.push_async_callback(crew.dismiss)  # before the ways close, or they would knock at them for ever
        yield proxies


@pytest.mark.parametrize(("harm", "grace"), HARMS)
async def test_what_runs_goes_on_when_the_node_fails(
    crew: Crew, record: Record, harm: Harm, grace: float
) -> None:
    """The lease ends neither on the server nor by the worker's own clock, though the grace is short."""
    async with ways(crew, 2) as proxies:
        worker = await _holding(crew, record, proxies, grace=grace)
        taken, other = _taken(proxies)
        harm(taken)
        await _stands_on(other, record)
        await _completes_unharmed(worker, crew, record)
        await _takes_up_more(record)
        assert not worker.noted(Deed.LOST)


async def test_one_failure_after_the_other(crew: Crew, record: Record) -> None:
    async with ways(crew, 2) as proxies:
        worker = await _holding(crew, record, proxies, grace=SILENCE_GRACE)
        for number in range(ROUNDS):
            taken, other = _taken(proxies)
            if number % 2:
                taken.cut()
            else:
                taken.black_hole()
            await _stands_on(other, record, GRACE)
            taken.heal()
            await until(partial(_is_left, taken))
        await _completes_unharmed(worker, crew, record)


async def test_nodes_that_are_not_there_are_passed_over(crew: Crew, record: Record) -> None:
    """At the start, and in the middle; also those that accept a connection and then say nothing."""
    async with ways(crew, 4) as proxies:
        mute, *others = proxies
        mute.black_hole()
        addresses = [free_address(), *(proxy.address for proxy in proxies), free_address()]
        worker = await _holding(crew, record, others, addresses, grace=SILENCE_GRACE)
        while others:
            (taken,) = (proxy for proxy in others if proxy.connections)
            others.remove(taken)
            if others:
                taken.vanish()
                await until(partial(_is_any_taken, tuple(others)))
                await record.worker_until("worker", lambda seen: seen.attached and not seen.suspect)
                await _renews(record, LEASE)
        await _completes_unharmed(worker, crew, record)


async def test_nobody_goes_back_while_the_way_works(crew: Crew, record: Record) -> None:
    async with ways(crew, 2) as proxies:
        worker = await _holding(crew, record, proxies)
        left, taken = _taken(proxies)
        left.cut()  # and new connections are welcome again at once
        await _stands_on(taken, record)
        accepted = left.accepted
        await _renews(record, LEASE)
        assert (left.accepted, len(taken.connections)) == (accepted, 1)
        await _completes_unharmed(worker, crew, record)


async def test_a_fleet_spreads_over_the_nodes(crew: Crew, record: Record) -> None:
    """A dozen of them all on one of two would be by chance once in two thousand times."""
    async with ways(crew, 2) as proxies:
        for number in range(12):
            await crew.join(f"worker-{number}", address=_list(proxies), lease=LEASE, grace=GRACE, wait=False)
        await until(lambda: sum(len(proxy.connections) for proxy in proxies) >= 12)
        assert all(proxy.connections for proxy in proxies)


async def test_a_node_that_stops_in_an_orderly_way_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its work goes on at another address, after a time that is longer than the grace."""
    folder = tmp_path_factory.mktemp("node")
    nodes = [free_address(), free_address()]
    async with AsyncExitStack() as stack:
        first, second = (
            ServerProcess(f"sqlite:///{folder / 'liveness.db'}", shards=4, flags=("--listen", node))
            for node in nodes
        )
        stack.push_async_callback(first.close)
        await first.start()
        record = await stack.enter_async_context(Record(nodes[0], "namespace"))
        crew = Crew(folder, record.namespace, nodes[1], [])
        stack.push_async_callback(crew.dismiss)
        worker = await crew.join("worker", address=",".join(nodes), lease=60.0, grace=GRACE)
        await record.schedule("job", "gated")
        await worker.notes_down(Deed.STARTED, "job")
        await record.worker_until("worker", lambda seen: seen.attached)
        assert await first.end(SIGTERM) == 0, first.said()
        await asyncio.sleep(2 * GRACE)
        stack.push_async_callback(second.close)
        await second.start()
        later = await stack.enter_async_context(Record(nodes[1], "namespace"))
        later.scheduled = record.scheduled
        await later.worker_until("worker", lambda seen: seen.attached)
        await _completes_unharmed(worker, crew, later)


async def test_many_activities_are_completed_once_while_ways_come_and_go(crew: Crew, record: Record) -> None:
    async with ways(crew, 3) as proxies:
        workers = [
            await crew.join(
                f"worker-{number}", address=_list(proxies), lease=LEASE, grace=SILENCE_GRACE, slots=3
            )
            for number in range(3)
        ]
        # What was on its way to a worker when its way failed is found after this time.
        await record.configure(dispatch_timeout={"seconds": 1})
        jobs = names("job", 90)
        for name in jobs:
            await record.schedule(name, "quick", ms=100)
        for number in range(ROUNDS):
            proxy = proxies[number % len(proxies)]
            wanted = min(len(crew.noted(Deed.FINISHED)) + PORTION, len(jobs))
            if number % 2:
                proxy.black_hole()
            else:
                proxy.cut()
            await until(partial(_has_finished, crew, wanted), crew.story)
            proxy.heal()
        await record.assert_each_completed_once()
        assert not crew.noted(Deed.LOST), crew.story()
        for worker in workers:
            assert (await record.worker(worker.name)).lease_epoch == 1


def _is_left(proxy: Proxy) -> bool:
    return not proxy.connections


def _is_any_taken(proxies: tuple[Proxy, ...]) -> bool:
    return any(proxy.connections for proxy in proxies)


def _has_finished(crew: Crew, wanted: int) -> bool:
    return len(crew.noted(Deed.FINISHED)) >= wanted


def _list(proxies: list[Proxy]) -> str:
    return ",".join(proxy.address for proxy in proxies)


def _taken(proxies: list[Proxy]) -> tuple[Proxy, Proxy]:
    """The one that the worker has taken, and the other."""
    first, second = proxies
    assert bool(first.connections) != bool(second.connections)
    return (first, second) if first.connections else (second, first)


async def _holding(
    crew: Crew,
    record: Record,
    proxies: list[Proxy],
    addresses: list[str] | None = None,
    *,
    grace: float = GRACE,
) -> WorkerProcess:
    """A worker that is at work on `job`."""
    address = ",".join(addresses) if addresses else _list(proxies)
    worker = await crew.join("worker", address=address, lease=LEASE, grace=grace)
    await record.schedule("job", "gated")
    await worker.notes_down(Deed.STARTED, "job")
    await record.worker_until("worker", lambda seen: seen.attached)
    return worker


async def _stands_on(proxy: Proxy, record: Record, seconds: float = LEASE) -> None:
    await until(lambda: proxy.connections)
    await record.worker_until("worker", lambda seen: seen.attached and not seen.suspect)
    await _renews(record, seconds)


async def _renews(record: Record, seconds: float) -> None:
    """Until heartbeats for so long a time have been heard."""
    first = (await record.worker("worker")).last_heartbeat_time.ToMilliseconds()
    await record.worker_until(
        "worker",
        lambda seen: (
            seen.state != ACTIVE or seen.last_heartbeat_time.ToMilliseconds() > first + seconds * 1_000
        ),
    )


async def _takes_up_more(record: Record) -> None:
    """The server may hand it to the poll that waits on the old way first, which it cannot know to be lost."""
    await record.configure(dispatch_timeout={"seconds": 1})
    await record.schedule("next", "quick", ms=10)
    await record.completion("next", "quick")


async def _completes_unharmed(worker: WorkerProcess, crew: Crew, record: Record) -> None:
    assert not worker.noted(Deed.LOST), worker.story()
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "worker", "attempt": 1}
    seen = await record.worker("worker")
    assert (seen.state, seen.lease_epoch) == (ACTIVE, 1), worker.story()
    await record.assert_each_completed_once()
