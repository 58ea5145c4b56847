"""A hint makes a node look sooner, and nothing else: whatever it says, calls go where the database says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain.keys import shard_of
from liveness.routing.routing_table import Owner
from liveness.v1 import activity_pb2, cluster_pb2, service_pb2
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.server.server_harness import NAMESPACE, RENEWED, SHARDS, ServerHarness

HUGE_EPOCH = 2**62


class Attacker:
    """Listens, records what it gets, and answers everything with OK."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def start(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_AnyMethod(self.received),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


class _AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, received: list[str]) -> None:
        self._received = received

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method

        async def answer(request: bytes, context: Any) -> bytes:
            self._received.append(method)
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
async def attacker() -> AsyncIterator[Attacker]:
    attacker = Attacker()
    await attacker.start()
    yield attacker
    await attacker.stop()


@pytest.fixture
async def pair(
    postgres: PostgresServer, postgres_database: str
) -> AsyncIterator[tuple[ServerHarness, ServerHarness]]:
    first, second = (ServerHarness(postgres.url(postgres_database)) for _ in range(2))
    await first.start()
    await second.start()
    await settled(first, second)
    yield first, second
    await first.stop()
    await second.stop()


async def hint(harness: ServerHarness, **fields: Any) -> cluster_pb2.HintResponse:
    """Send a hint, and return when the node has looked where it points to."""
    server = harness.server
    async with grpc.aio.insecure_channel(server.cluster_address) as channel:
        stub: Any = ClusterServiceStub(channel)
        answer: cluster_pb2.HintResponse = await stub.Hint(cluster_pb2.HintRequest(**fields))
    await server.cluster_service.hint_check.wait()
    return answer


async def routes_of(harness: ServerHarness) -> cluster_pb2.GetRoutesResponse:
    async with grpc.aio.insecure_channel(harness.server.cluster_address) as channel:
        stub: Any = ClusterServiceStub(channel)
        answer: cluster_pb2.GetRoutesResponse = await stub.GetRoutes(cluster_pb2.GetRoutesRequest())
        return answer


def worker_of(harness: ServerHarness) -> str:
    return next(
        name
        for name in map(str, range(1_000))
        if harness.server.node.serves(shard_of(NAMESPACE, name, SHARDS))
    )


@pytest.mark.parametrize("sender", ["a stranger", "a node's name", "a node's name and address"])
async def test_a_forged_owner_diverts_no_call(
    pair: tuple[ServerHarness, ServerHarness], attacker: Attacker, sender: str
) -> None:
    first, second = pair
    worker = worker_of(second)
    await first.beat(worker)
    owners, known = first.server.routes.owners(), await routes_of(first)
    node_id = "attacker" if sender == "a stranger" else second.server.node.owner
    address = second.server.cluster_address if sender.endswith("address") else attacker.address
    claimed = [
        cluster_pb2.ShardRoute(shard_id=shard_id, node_id=node_id, epoch=HUGE_EPOCH)
        for shard_id in range(SHARDS)
    ]
    await hint(first, node_id=node_id, address=address, owned=claimed)
    assert first.server.routes.owners() == owners
    assert (await first.beat(worker)).outcome == RENEWED
    assert (await first.beat(worker_of(first), namespace=NAMESPACE)).outcome
    assert (await routes_of(first)).shards == known.shards
    assert attacker.received == []


async def test_shards_that_were_not_released_keep_their_owner(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    owners = first.server.routes.owners()
    await hint(
        first,
        node_id=second.server.node.owner,
        address=second.server.cluster_address,
        released=range(SHARDS),
        wake_shards=range(SHARDS),
    )
    assert first.server.routes.owners() == owners


async def test_a_wrong_owner_lasts_until_the_next_read_of_the_registry(
    pair: tuple[ServerHarness, ServerHarness], attacker: Attacker
) -> None:
    """Whoever told this node, and however high the epoch."""
    first, second = pair
    worker = worker_of(second)
    owners = first.server.routes.owners()
    for shard_id in range(SHARDS):
        first.server.routes.update_owner(shard_id, Owner("attacker", attacker.address, HUGE_EPOCH))
    await first.server.membership.refresh()
    assert first.server.routes.owners() == owners
    await first.beat(worker)
    assert attacker.received == []


async def test_a_hint_about_a_new_owner_is_followed_without_a_refresh(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    shard_id = min(owned(second))
    [shard] = [shard for shard in second.server.node.shards() if shard.id == shard_id]
    await second.server.node.hand_over([shard_id])
    await second.server.node.open({shard_id: shard.epoch})
    [reopened] = [shard for shard in second.server.node.shards() if shard.id == shard_id]
    assert reopened.epoch > shard.epoch
    claimed = cluster_pb2.ShardRoute(
        shard_id=shard_id, node_id=second.server.node.owner, epoch=reopened.epoch
    )
    await hint(
        first, node_id=second.server.node.owner, address=second.server.cluster_address, owned=[claimed]
    )
    known = first.server.routes.owner(shard_id)
    assert known is not None
    assert known.epoch == reopened.epoch


async def test_a_forged_log_head_hides_no_event(pair: tuple[ServerHarness, ServerHarness]) -> None:
    first, second = pair
    worker = worker_of(second)
    watch = first.liveness.WatchEvents(
        service_pb2.WatchEventsRequest(namespace=NAMESPACE, worker_instance_key=worker)
    )
    await watch.read()
    shard_id = shard_of(NAMESPACE, worker, SHARDS)
    sender = {"node_id": second.server.node.owner, "address": second.server.cluster_address}
    heads = [cluster_pb2.LogHead(shard_id=shard_id, sequence=2**60)]
    await hint(first, **sender, heads=heads)
    assert first.server.feed._remote_heads.get(shard_id, 0) < 2**60
    await second.beat(worker)
    await first.server.feed.refresh()
    response = await asyncio.wait_for(watch.read(), 10)
    assert [event.worker_instance_key for event in response.events] == [worker]
    watch.cancel()


@pytest.mark.parametrize(
    ("counts", "is_believed"),
    [((3, 10), True), ((11, 10), False), ((2**52, 2**52), False)],
)
async def test_deaths_are_counted_for_known_nodes_only(
    pair: tuple[ServerHarness, ServerHarness], counts: tuple[int, int], is_believed: bool
) -> None:
    first, second = pair
    workers, of = counts
    struck = [cluster_pb2.Struck(namespace=NAMESPACE, workers=workers, of=of)]
    death_rate = first.server.node.throttle.death_rate
    await hint(first, node_id="attacker", address="127.0.0.1:1", struck=struck)
    await hint(first, node_id=second.server.node.owner, address="127.0.0.1:1", struck=struck)
    assert death_rate.on_other_nodes(NAMESPACE).total == 0
    sender = {"node_id": second.server.node.owner, "address": second.server.cluster_address}
    await hint(first, **sender, struck=struck)
    assert death_rate.on_other_nodes(NAMESPACE).total == (of if is_believed else 0)


@pytest.mark.parametrize("sender", ["a stranger", "a node's name"])
async def test_only_registered_nodes_are_called_because_of_a_hint(
    pair: tuple[ServerHarness, ServerHarness], attacker: Attacker, sender: str
) -> None:
    first, second = pair
    node_id = "attacker" if sender == "a stranger" else second.server.node.owner
    offers = [cluster_pb2.QueueOffer(namespace=NAMESPACE, task_queue="q", activity_types=["t"])]
    await hint(first, node_id=node_id, address=attacker.address, offers=offers, watching=True)
    assert first.server.peers.watching_addresses == set()
    worker = worker_of(first)
    await first.beat(worker, session_id="s", task_queue="q")
    poll = activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key=worker, task_queue="q", wait=Duration()
    )
    answer = await first.activities.PollActivity(poll)
    assert not answer.activities
    assert attacker.received == []
