"""The choice among several nodes, and programs that know several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import grpc
import pytest

from liveness.sdk import Client, ServerAway, Worker
from liveness.sdk.failover import (
    CONNECT_TIMEOUT_MS,
    FAILOVER_CONNECT_TIMEOUT_MS,
    ServerEndpoint,
    ServerEndpoints,
)
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.values import to_duration
from tests.system.sdk.server_process import LivenessServer, call_proxy, free_address, until

NODES = ["a:7400", "b:7400", "c:7400"]
GONE = RpcFailure(grpc.StatusCode.UNAVAILABLE)
HUNG = RpcFailure(grpc.StatusCode.DEADLINE_EXCEEDED)
STOPPING = RpcFailure(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
STARTS = 8
GRACE_S = 2
FOLLOWING = ("RecordWorkerHeartbeats", "Attach", "PollActivity")


class FailoverState:
    """Routes to nodes without any traffic."""

    def __init__(self, nodes: list[str]) -> None:
        self.left: list[ServerEndpoint] = []
        self.endpoints = ServerEndpoints(nodes, Random(7), self.left.append)

    @property
    def current(self) -> ServerEndpoint:
        return self.endpoints.current

    def fail(self, refusal: RpcFailure, failures: int = 1) -> bool:
        return self.endpoints.report_failure(self.current, refusal, failures)


# -- the choice of a node


@pytest.mark.parametrize("refusal", [GONE, HUNG, STOPPING])
def test_a_failed_node_is_left_for_the_next(refusal: RpcFailure) -> None:
    turns = FailoverState(NODES)
    first = turns.current
    assert turns.fail(refusal)
    assert turns.current.address != first.address
    assert turns.left == [first]


@pytest.mark.parametrize(
    "refusal",
    [
        RpcFailure(grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE"),
        RpcFailure(grpc.StatusCode.FAILED_PRECONDITION, "FENCED_OFF"),
        RpcFailure(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"),
        RpcFailure(grpc.StatusCode.CANCELLED),
        RpcFailure(grpc.StatusCode.INTERNAL),
        RpcFailure(grpc.StatusCode.UNIMPLEMENTED),
    ],
    ids=lambda refusal: refusal.reason or refusal.code.name,
)
def test_a_node_that_answers_is_not_left(refusal: RpcFailure) -> None:
    turns = FailoverState(NODES)
    first = turns.current
    assert not turns.fail(refusal)
    assert turns.current is first


def test_each_node_gets_its_turn() -> None:
    turns = FailoverState(NODES)
    seen = []
    for number in range(2 * len(NODES)):
        seen.append(turns.current.address)
        at_once = turns.fail(GONE, failures=number + 1)
        assert at_once == (number + 1 < len(NODES)), "a caller that has been everywhere backs off"
    assert sorted(seen[:3]) == NODES
    assert seen[:3] == seen[3:]


def test_a_late_failure_of_a_node_that_was_left_causes_no_move() -> None:
    """The call is repeated at once, at the present node."""
    turns = FailoverState(NODES)
    first = turns.current
    turns.fail(GONE)
    second = turns.current
    assert turns.endpoints.report_failure(first, GONE, 1)
    assert turns.endpoints.report_failure(first, RpcFailure(grpc.StatusCode.CANCELLED), 1)
    assert turns.current is second


def test_a_single_node_is_never_left() -> None:
    turns = FailoverState(NODES[:1])
    first = turns.current
    for refusal in (GONE, HUNG, STOPPING):
        assert not turns.fail(refusal)
    assert turns.current is first
    assert turns.endpoints.connect_timeout_ms == CONNECT_TIMEOUT_MS


def test_slow_nodes_get_more_time_in_each_round() -> None:
    turns = FailoverState(NODES)
    times = []
    for _ in range(8 * len(NODES)):
        times.append(turns.endpoints.connect_timeout_ms)
        turns.fail(GONE)
    assert times[: 2 * len(NODES)] == [200, 200, 200, 400, 400, 400]
    assert times[-1] == FAILOVER_CONNECT_TIMEOUT_MS[1]
    turns.endpoints.mark_success(turns.current)
    assert turns.endpoints.connect_timeout_ms == FAILOVER_CONNECT_TIMEOUT_MS[0]


def test_processes_spread_over_the_nodes() -> None:
    """Also the processes that leave a failed node."""
    firsts, seconds = set(), set()
    for seed in range(100):
        endpoints = ServerEndpoints(NODES, Random(seed), lambda _: None)
        firsts.add(endpoints.current.address)
        if endpoints.current.address == "a:7400":
            endpoints.report_failure(endpoints.current, GONE, 1)
            seconds.add(endpoints.current.address)
    assert (firsts, seconds) == (set(NODES), {"b:7400", "c:7400"})


# -- programs


async def test_a_worker_and_a_client_find_the_node_that_runs(server: LivenessServer, namespace: str) -> None:
    nodes = [free_address(), server.address, free_address()]
    for number in range(STARTS):  # each starts at a random node
        async with (
            Worker(nodes, namespace=namespace, instance_key=f"w{number}") as worker,
            Client(",".join(nodes), namespace=namespace) as client,
        ):
            assert worker.lease_epoch == 1
            await client.schedule("resize", id=f"photo-{number}", task_queue="queue")
            until(partial(_is_attached, server, namespace, worker.instance_key))


async def test_a_program_is_told_when_no_node_runs() -> None:
    nodes = [free_address(), free_address()]
    with pytest.raises(ServerAway, match=f"{nodes[0]} or {nodes[1]}"):
        await Worker(nodes, start_timeout=0.5).__aenter__()
    async with Client(nodes, timeout=0.5) as client:
        with pytest.raises(ServerAway, match=f"{nodes[0]} or {nodes[1]}"):
            await client.list()


async def test_a_client_asks_another_node_when_one_hangs(
    own_server: LivenessServer, server: LivenessServer, namespace: str
) -> None:
    async with Client([own_server.address, server.address], namespace=namespace, timeout=4) as client:
        await _begin_at(client, own_server.address)
        await client.list()
        with own_server.suspended():
            await client.schedule("resize", id="photo", task_queue="queue")
            assert (await client.describe("photo", type="resize")).state == "AVAILABLE"
            assert client._connect().endpoints.current.address == server.address


async def test_stream_heartbeats_and_poll_follow_the_calls_to_another_node(
    server: LivenessServer, namespace: str
) -> None:
    """A client's call detects the failure; the worker's heartbeats, its working stream and its poll follow."""
    # The proxy does not tell the server that a poll was given up; its hand-out is taken back after this time.
    server.configure(namespace, dispatch_timeout=to_duration(1))
    with call_proxy(server.address) as one, call_proxy(server.address) as two:
        nodes = [one.address, two.address]
        async with (
            Worker(nodes, namespace=namespace, task_queue="queue", lease=3_600) as worker,
            Client(nodes, namespace=namespace) as client,
        ):
            left, taken = (
                (one, two) if client._connect().endpoints.current.address == one.address else (two, one)
            )
            worker.activity("resize")(lambda task: task.id)
            running = asyncio.create_task(worker.run(handle_signals=False))
            key = worker.instance_key
            await _comes_true(lambda: server.worker(namespace, key).attached)
            await _comes_true(lambda: left.calls["PollActivity"] > 0)
            before = left.calls.copy()
            left.lose_answers("ListActivities", 1)
            await client.list()
            await _comes_true(lambda: all(taken.calls[name] for name in FOLLOWING))
            await _comes_true(lambda: server.worker(namespace, key).attached)
            assert [left.calls[name] - before[name] for name in FOLLOWING] == [0, 0, 0]
            assert worker.lease_epoch == 1
            await client.schedule("resize", id="photo", task_queue="queue")
            assert (await client.wait("photo", type="resize")).result == b"photo"
            worker.stop()
            await running


async def test_a_broken_stream_moves_all_calls(server: LivenessServer, namespace: str) -> None:
    """No heartbeat would have detected it for a long time."""
    with call_proxy(server.address) as one, call_proxy(server.address) as two:
        nodes = [one.address, two.address]
        async with Worker(nodes, namespace=namespace, lease=3_600, disconnect_grace=None) as worker:
            key = worker.instance_key
            left, taken = (one, two) if one.calls else (two, one)
            await _comes_true(lambda: server.worker(namespace, key).attached)
            left.close()
            await _comes_true(lambda: taken.calls["Attach"] > 0)
            await _comes_true(lambda: taken.calls["RecordWorkerHeartbeats"] > 0)
            await _comes_true(lambda: server.worker(namespace, key).attached)


async def test_a_hanging_node_is_left_before_the_grace_is_over(
    server: LivenessServer, namespace: str
) -> None:
    """Only pings detect it: the next heartbeat is due in minutes."""
    with call_proxy(server.address) as one, call_proxy(server.address) as two:
        nodes = [one.address, two.address]
        async with Worker(
            nodes, namespace=namespace, task_queue="queue", lease=3_600, disconnect_grace=GRACE_S
        ) as worker:
            left, taken = (one, two) if one.calls else (two, one)
            watchdog = worker._live_session()._watchdog
            await _comes_true(lambda: server.worker(namespace, worker.instance_key).attached)
            async with worker.bind("a") as binding:
                left.is_muted.set()
                over_ms = watchdog.local_lease.last_contact_ms + 2_000 * GRACE_S
                await _comes_true(
                    lambda: binding.lost.is_set() or watchdog.local_lease.last_contact_ms > over_ms
                )
                binding.check()
                assert taken.calls["Attach"] == 1


async def test_a_hanging_heartbeat_is_repeated_at_another_node(
    server: LivenessServer, namespace: str
) -> None:
    """Without a grace, no ping detects it in time; the repeated heartbeat is the same."""
    with call_proxy(server.address) as one, call_proxy(server.address) as two:
        nodes = [one.address, two.address]
        async with Worker(
            nodes, namespace=namespace, task_queue="queue", lease=3, disconnect_grace=None
        ) as worker:
            connection = worker._connection
            assert connection is not None
            left, taken = (one, two) if connection.endpoints.current.address == one.address else (two, one)
            with left.holding_back("RecordWorkerHeartbeats"):
                async with worker.bind("a") as binding:
                    assert taken.calls["RecordWorkerHeartbeats"] > 0
                    assert binding.fencing_token.lease_epoch == 1
                    assert server.bound(namespace, worker.instance_key) == {"a"}
        sent = [request for name, request in left.requests if name == "RecordWorkerHeartbeats"]
        again = [request for name, request in taken.requests if name == "RecordWorkerHeartbeats"]
        assert sent[-1] == again[0]


def _is_attached(server: LivenessServer, namespace: str, key: str) -> bool:
    return server.worker(namespace, key).attached


async def _begin_at(client: Client, address: str) -> None:
    while client._connect().endpoints.current.address != address:
        client.close()


async def _comes_true(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)
