"""A worker that knows several addresses of the server switches to another when its current one fails.

The addresses are proxies to one server, which stand for nodes of one cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from signal import SIGTERM

import pytest

from liveness.v1 import worker_pb2
from tests.system.sdk.server_process import free_address
from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.tcp_proxy import ForwardMode, Proxy
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, WorkerProcess, until

LEASE = 3.0
GRACE = 1.0
SILENCE_GRACE = 2.0
"""For nodes that fail silently, which takes half the grace to detect."""
ROUNDS = 6
PORTION = 10
"""Activities finished between two failures, at least."""
ACTIVE = worker_pb2.WORKER_STATE_ACTIVE

PathFault = Callable[[Proxy], None]

PATH_FAULTS = [
    pytest.param(Proxy.vanish, GRACE, id="killed"),
    pytest.param(Proxy.black_hole, SILENCE_GRACE, id="unreachable"),
    pytest.param(partial(Proxy.black_hole, way=ForwardMode.HOLD), SILENCE_GRACE, id="hung"),
]


@asynccontextmanager
async def ways(worker_group: WorkerGroup, number: int) -> AsyncIterator[list[Proxy]]:
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(worker_group.address)) for _ in range(number)]
        stack.push_async_callback(
            worker_group.close
        )  # before the proxies close; the workers would retry them for ever
        yield proxies


@pytest.mark.parametrize(("harm", "grace"), PATH_FAULTS)
async def test_running_activities_survive_a_node_failure(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, harm: PathFault, grace: float
) -> None:
    """The lease ends neither at the server nor by the worker's own clock, although the grace is short."""
    async with ways(worker_group, 2) as proxies:
        worker = await _holding(worker_group, namespace_client, proxies, grace=grace)
        taken, other = _taken(proxies)
        harm(taken)
        await _stands_on(other, namespace_client)
        await _completes_unharmed(worker, worker_group, namespace_client)
        await _takes_up_more(namespace_client)
        assert not worker.noted(Action.LOST)


async def test_a_worker_survives_one_node_failure_after_the_other(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    async with ways(worker_group, 2) as proxies:
        worker = await _holding(worker_group, namespace_client, proxies, grace=SILENCE_GRACE)
        for number in range(ROUNDS):
            taken, other = _taken(proxies)
            if number % 2:
                taken.cut()
            else:
                taken.black_hole()
            await _stands_on(other, namespace_client, GRACE)
            taken.heal()
            await until(partial(_is_left, taken))
        await _completes_unharmed(worker, worker_group, namespace_client)


async def test_a_worker_skips_unreachable_nodes(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    """At the start and later; also nodes that accept a connection and never answer."""
    async with ways(worker_group, 4) as proxies:
        mute, *others = proxies
        mute.black_hole()
        addresses = [free_address(), *(proxy.address for proxy in proxies), free_address()]
        worker = await _holding(worker_group, namespace_client, others, addresses, grace=SILENCE_GRACE)
        while others:
            (taken,) = (proxy for proxy in others if proxy.connections)
            others.remove(taken)
            if others:
                taken.vanish()
                await until(partial(_is_any_taken, tuple(others)))
                await namespace_client.worker_until("worker", lambda seen: seen.attached and not seen.suspect)
                await _renews(namespace_client, LEASE)
        await _completes_unharmed(worker, worker_group, namespace_client)


async def test_a_worker_stays_with_a_node_that_works(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    async with ways(worker_group, 2) as proxies:
        worker = await _holding(worker_group, namespace_client, proxies)
        left, taken = _taken(proxies)
        left.cut()  # it accepts new connections again at once
        await _stands_on(taken, namespace_client)
        accepted = left.accepted
        await _renews(namespace_client, LEASE)
        assert (left.accepted, len(taken.connections)) == (accepted, 1)
        await _completes_unharmed(worker, worker_group, namespace_client)


async def test_workers_spread_over_the_nodes(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    """By chance, a dozen workers would all choose the same of two nodes once in two thousand runs."""
    async with ways(worker_group, 2) as proxies:
        for number in range(12):
            await worker_group.join(
                f"worker-{number}", address=_list(proxies), lease=LEASE, grace=GRACE, wait=False
            )
        await until(lambda: sum(len(proxy.connections) for proxy in proxies) >= 12)
        assert all(proxy.connections for proxy in proxies)


async def test_a_node_that_stops_gracefully_costs_no_activity(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The activity continues at another address, for longer than the grace."""
    folder = tmp_path_factory.mktemp("node")
    nodes = [free_address(), free_address()]
    async with AsyncExitStack() as stack:
        first, second = (
            ServerProcess(f"sqlite:///{folder / 'liveness.db'}", shards=4, flags=("--listen", node))
            for node in nodes
        )
        stack.push_async_callback(first.close)
        await first.start()
        namespace_client = await stack.enter_async_context(NamespaceClient(nodes[0], "namespace"))
        worker_group = WorkerGroup(folder, namespace_client.namespace, nodes[1], [])
        stack.push_async_callback(worker_group.close)
        worker = await worker_group.join("worker", address=",".join(nodes), lease=60.0, grace=GRACE)
        await namespace_client.schedule("job", "gated")
        await worker.wait_for_note(Action.STARTED, "job")
        await namespace_client.worker_until("worker", lambda seen: seen.attached)
        assert await first.end(SIGTERM) == 0, first.log_text()
        await asyncio.sleep(2 * GRACE)
        stack.push_async_callback(second.close)
        await second.start()
        later = await stack.enter_async_context(NamespaceClient(nodes[1], "namespace"))
        later.scheduled = namespace_client.scheduled
        await later.worker_until("worker", lambda seen: seen.attached)
        await _completes_unharmed(worker, worker_group, later)


async def test_many_activities_complete_once_while_nodes_fail_and_return(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    async with ways(worker_group, 3) as proxies:
        workers = [
            await worker_group.join(
                f"worker-{number}", address=_list(proxies), lease=LEASE, grace=SILENCE_GRACE, slots=3
            )
            for number in range(3)
        ]
        # A hand-out that was on its way when its connection failed is taken back after this time.
        await namespace_client.configure(dispatch_timeout={"seconds": 1})
        jobs = names("job", 90)
        for name in jobs:
            await namespace_client.schedule(name, "quick", ms=100)
        for number in range(ROUNDS):
            proxy = proxies[number % len(proxies)]
            wanted = min(len(worker_group.noted(Action.FINISHED)) + PORTION, len(jobs))
            if number % 2:
                proxy.black_hole()
            else:
                proxy.cut()
            await until(partial(_has_finished, worker_group, wanted), worker_group.recent_notes)
            proxy.heal()
        await namespace_client.assert_each_completed_once()
        assert not worker_group.noted(Action.LOST), worker_group.recent_notes()
        for worker in workers:
            assert (await namespace_client.worker(worker.name)).lease_epoch == 1


def _is_left(proxy: Proxy) -> bool:
    return not proxy.connections


def _is_any_taken(proxies: tuple[Proxy, ...]) -> bool:
    return any(proxy.connections for proxy in proxies)


def _has_finished(worker_group: WorkerGroup, wanted: int) -> bool:
    return len(worker_group.noted(Action.FINISHED)) >= wanted


def _list(proxies: list[Proxy]) -> str:
    return ",".join(proxy.address for proxy in proxies)


def _taken(proxies: list[Proxy]) -> tuple[Proxy, Proxy]:
    """Return the proxy that the worker uses, and the other one."""
    first, second = proxies
    assert bool(first.connections) != bool(second.connections)
    return (first, second) if first.connections else (second, first)


async def _holding(
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    proxies: list[Proxy],
    addresses: list[str] | None = None,
    *,
    grace: float = GRACE,
) -> WorkerProcess:
    """Start a worker that is running `job`."""
    address = ",".join(addresses) if addresses else _list(proxies)
    worker = await worker_group.join("worker", address=address, lease=LEASE, grace=grace)
    await namespace_client.schedule("job", "gated")
    await worker.wait_for_note(Action.STARTED, "job")
    await namespace_client.worker_until("worker", lambda seen: seen.attached)
    return worker


async def _stands_on(proxy: Proxy, namespace_client: NamespaceClient, seconds: float = LEASE) -> None:
    await until(lambda: proxy.connections)
    await namespace_client.worker_until("worker", lambda seen: seen.attached and not seen.suspect)
    await _renews(namespace_client, seconds)


async def _renews(namespace_client: NamespaceClient, seconds: float) -> None:
    """Wait until the server has received heartbeats for this long."""
    first = (await namespace_client.worker("worker")).last_heartbeat_time.ToMilliseconds()
    await namespace_client.worker_until(
        "worker",
        lambda seen: (
            seen.state != ACTIVE or seen.last_heartbeat_time.ToMilliseconds() > first + seconds * 1_000
        ),
    )


async def _takes_up_more(namespace_client: NamespaceClient) -> None:
    """Check that the worker gets more work.

    The server may first hand it to the poll on the old connection, which it cannot know to be lost.
    """
    await namespace_client.configure(dispatch_timeout={"seconds": 1})
    await namespace_client.schedule("next", "quick", ms=10)
    await namespace_client.completion("next", "quick")


async def _completes_unharmed(
    worker: WorkerProcess, worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    assert not worker.noted(Action.LOST), worker.recent_notes()
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "worker", "attempt": 1}
    seen = await namespace_client.worker("worker")
    assert (seen.state, seen.lease_epoch) == (ACTIVE, 1), worker.recent_notes()
    await namespace_client.assert_each_completed_once()
