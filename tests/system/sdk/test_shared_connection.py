"""Many workers in one process share one channel, one thread, few calls and one stream."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import AsyncExitStack

from liveness.sdk import Worker
from liveness.sdk.connection import Connection
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest
from liveness.v1.worker_pb2 import WORKER_STATUS_RUNNING
from tests.system.sdk.server_process import CallProxy, LivenessServer, call_proxy, until

WORKERS = 40


def heartbeats(proxy: CallProxy) -> list[RecordWorkerHeartbeatsRequest]:
    return [
        RecordWorkerHeartbeatsRequest.FromString(request)
        for name, request in list(proxy.requests)
        if name == "RecordWorkerHeartbeats"
    ]


def threads() -> Counter[str]:
    """Return the SDK's threads of connections. Servers of other tests have threads, too."""
    names = [thread.name for thread in threading.enumerate()]
    return Counter(name for name in names if name in ("liveness-sdk", "liveness-attach"))


async def test_workers_of_a_process_share_their_calls(server: LivenessServer, namespace: str) -> None:
    # Those of an earlier test may still be ending, and need the event loop for it.
    await asyncio.to_thread(until, lambda: not threads())
    with call_proxy(server.address) as proxy:
        async with AsyncExitStack() as stack:
            workers = [
                Worker(proxy.address, namespace=namespace, task_queue="queue", lease=3, disconnect_grace=None)
                for _ in range(WORKERS)
            ]
            await asyncio.gather(*(stack.enter_async_context(worker) for worker in workers))
            keys = {worker.instance_key for worker in workers}
            assert len(keys) == WORKERS
            until(lambda: all(server.worker(namespace, key).attached for key in keys))
            assert proxy.calls["Attach"] == 1
            assert threads() == {"liveness-sdk": 1, "liveness-attach": 1}

            begun = len(heartbeats(proxy))
            until(lambda: len(heartbeats(proxy)) > begun + 10)
            batches = [len(request.heartbeats) for request in heartbeats(proxy)[begun:]]
            assert max(batches) > 1
            assert len(batches) < sum(batches) / 2

            async def hold(worker: Worker) -> None:
                async with worker.bind("a"):
                    assert server.bound(namespace, worker.instance_key) == {"a"}

            await asyncio.gather(*map(hold, workers))
        assert all(server.worker(namespace, key).state == 2 for key in keys)
        until(lambda: not threads())


async def test_only_one_heartbeat_call_is_under_way_at_a_time(server: LivenessServer, namespace: str) -> None:
    """Each worker's sequence rises by one, whatever is bound meanwhile."""
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker:

            async def hold(number: int) -> None:
                async with worker.bind(f"a{number}"):
                    pass

            for _ in range(5):
                await asyncio.gather(*map(hold, range(50)))
        numbers = [beat.sequence for request in heartbeats(proxy) for beat in request.heartbeats]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) < 100, "binds travel together"


async def test_plain_heartbeats_have_equal_bytes(server: LivenessServer, namespace: str) -> None:
    """All but the first, which has no lease yet, and the last, which says that the worker stops."""
    labels = {f"label-{number}": f"{number}" for number in range(20)}
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, lease=1, labels=labels):
            await asyncio.to_thread(until, lambda: len(heartbeats(proxy)) >= 5)
        plain = set()
        for request in heartbeats(proxy):
            for beat in request.heartbeats:
                if beat.sequence > 1 and beat.status == WORKER_STATUS_RUNNING:
                    beat.sequence = 0
                    plain.add(beat.SerializeToString())
        assert len(plain) == 1


async def test_namespaces_do_not_wait_for_each_other(server: LivenessServer, namespace: str) -> None:
    async with (
        Worker(server.address, namespace=namespace, task_queue="queue") as one,
        Worker(server.address, namespace=f"{namespace}-b", task_queue="queue") as two,
        one.bind("a"),
        two.bind("a"),
    ):
        assert server.bound(namespace, one.instance_key) == {"a"}
        assert server.bound(f"{namespace}-b", two.instance_key) == {"a"}


async def test_the_channel_is_closed_with_its_last_user(server: LivenessServer, namespace: str) -> None:
    first = Worker(server.address, namespace=namespace)
    second = Worker(server.address, namespace=namespace)
    async with first:
        shared = first._connection
        async with second:
            assert second._connection is shared
        assert shared in Connection._shared.values()
    assert shared not in Connection._shared.values()
