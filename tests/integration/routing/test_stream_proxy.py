"""Attach through another node or a frontend: the client sees the same, wherever its workers' shards are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from liveness.domain.keys import WorkerKey
from liveness.server import forwarded_streams
from liveness.v1 import admin_pb2, worker_pb2
from liveness.v1.service_pb2 import AttachRequest, AttachResponse
from tests.integration.engine.engine import duration
from tests.integration.routing.routed_cluster import Client, Cluster, Owner
from tests.integration.routing.test_retries import shard_id_of
from tests.integration.server.server_harness import ACTIVE, INACTIVE, NAMESPACE, SHARDS, unpack_status

GRACE_MS = 2_000


class Stream:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.call: Any = client.liveness.Attach()

    async def attach(
        self, worker: str, grace_ms: int | None = GRACE_MS, session: str = "s", number: int = 0
    ) -> Any:
        await self.request_attach(worker, grace_ms, session, number)
        return (await self.read()).attached

    async def request_attach(
        self, worker: str, grace_ms: int | None = GRACE_MS, session: str = "s", number: int = 0
    ) -> None:
        request = AttachRequest.Attach(
            namespace=NAMESPACE, worker_instance_key=worker, session_id=session, attach_number=number
        )
        if grace_ms is not None:
            request.disconnect_grace.CopyFrom(duration(grace_ms))
        await self.call.write(AttachRequest(attach=request))

    async def attach_fully(self, *workers: str, number: int = 0) -> None:
        for worker in workers:
            attached = await self.attach(worker, number=number)
            assert not attached.HasField("status"), attached.status
            assert (await self.read()).orders.worker_instance_key == worker

    async def detach(self, worker: str) -> None:
        detach = AttachRequest.Detach(namespace=NAMESPACE, worker_instance_key=worker)
        await self.call.write(AttachRequest(detach=detach))

    async def ping(self, number: int = 1) -> list[AttachResponse]:
        """Send a ping and return the messages before its answer."""
        await self.call.write(AttachRequest(ping=AttachRequest.Ping(number=number)))
        before = []
        while not (message := await self.read()).HasField("pong"):
            before.append(message)
        assert message.pong.number == number
        return before

    async def read(self) -> Any:
        return await asyncio.wait_for(self.call.read(), 10)

    async def cut(self) -> None:
        """Close the connection, as when the process is killed."""
        await self._client.channel.close()


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), 10)


def is_attached(owner: Owner, worker: str, session: str = "s") -> bool:
    return owner.streams.is_attached(WorkerKey(NAMESPACE, worker), session)


async def seen(owner: Owner, worker: str) -> tuple[int, bool, bool]:
    found = await owner.harness.describe(worker)
    return found.state, found.attached, found.suspect


async def beat(owner: Owner, worker: str) -> None:
    await owner.harness.beat(worker, session_id="s", sequence=1, lease_ms=60_000)


@pytest.fixture(params=["a frontend", "a node"])
async def stream(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Stream]:
    """The stream of a client of a frontend, or of node a, which owns shards itself."""
    address = cluster.frontend.address if request.param == "a frontend" else cluster.owners["a"].address
    stream = Stream(cluster.connect(address))
    yield stream
    await stream.cut()


@pytest.fixture
async def workers(cluster: Cluster) -> tuple[str, str]:
    """One worker of each owner, known to both owners so that their shards can move."""
    found = cluster.worker_owned_by("a"), cluster.worker_owned_by("b")
    for owner in cluster.owners.values():
        shards = set(owner.owned)
        owner.owned.update(range(SHARDS))
        for worker in found:
            await beat(owner, worker)
        owner.owned.intersection_update(shards)
    return found


def move(cluster: Cluster, worker: str, to: str) -> None:
    """Hand a shard over as a node does: proxied streams are told, then the new owner is known."""
    former, shard_id = cluster.owner_of(worker), shard_id_of(worker)
    shard = former.harness.server.node._shards[shard_id]
    assert shard is not None
    cluster.move(shard_id, to)
    former.streams.shard_closed(shard)


async def test_one_stream_serves_workers_of_several_owners(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    await stream.attach_fully(*workers)
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        assert await seen(owner, worker) == (ACTIVE, True, False)
        await owner.harness.admin.PauseWorkers(
            admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key=worker)
        )
        orders = (await stream.read()).orders
        assert (orders.worker_instance_key, orders.pause) == (worker, True)


async def test_every_owner_is_told_of_a_broken_stream(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    await stream.attach_fully(*workers)
    await stream.cut()
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        await until(lambda owner=owner, worker=worker: not is_attached(owner, worker))  # type: ignore[misc]
        assert await seen(owner, worker) == (ACTIVE, False, True)
        await owner.harness.advance(GRACE_MS + 300)
        found = await owner.harness.describe(worker)
        assert (found.state, found.inactive_reason) == (
            INACTIVE,
            worker_pb2.INACTIVE_REASON_DISCONNECTED,
        )


async def test_a_detach_is_forwarded_before_the_break(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    """The client attaches, detaches and closes without waiting."""
    for worker in workers:
        await stream.request_attach(worker)
        await stream.detach(worker)
    await stream.ping()
    await stream.cut()
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        await owner.harness.advance(GRACE_MS + 300)
        await until(lambda: not cluster.frontend.gateway.streams._clients)
        assert (await seen(owner, worker))[0] == ACTIVE
        assert not (await owner.harness.describe(worker)).suspect


async def test_an_attach_is_forwarded_before_the_break(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    for worker in workers:
        await stream.request_attach(worker)
    await stream.ping()  # the gateway has received it; the owners may not have answered yet
    await stream.cut()
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        disconnected = owner.harness.server.node._shards[shard_id_of(worker)]
        assert disconnected is not None
        await until(lambda shard=disconnected: shard.disconnected)  # type: ignore[misc]


async def test_a_refused_attach_is_the_owners_and_does_not_end_the_stream(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    a, b = workers
    assert unpack_status((await stream.attach("unknown")).status).reason == "WORKER_NOT_FOUND"
    assert unpack_status((await stream.attach(b, session="x")).status).reason == "SESSION_NOT_CURRENT"
    await stream.attach_fully(a, b)
    assert unpack_status((await stream.attach(b, session="x")).status).reason == "SESSION_NOT_CURRENT"
    assert is_attached(cluster.owners["b"], b)  # a refused second attach keeps the first


async def test_an_empty_stream_message_is_refused(stream: Stream) -> None:
    await stream.call.write(AttachRequest())
    with pytest.raises(grpc.aio.AioRpcError, match="must be attach, detach or ping") as refused:
        await stream.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("which", [0, 1])
async def test_a_worker_is_attached_to_the_new_owner_when_its_shard_moves(
    cluster: Cluster, stream: Stream, workers: tuple[str, str], which: int
) -> None:
    await stream.attach_fully(*workers)
    worker, (former, next_owner) = workers[which], list(cluster.owners.values())[:: 1 - 2 * which]
    move(cluster, worker, next_owner.name)
    cluster.publish()
    await until(lambda: is_attached(next_owner, worker))
    assert not is_attached(former, worker)
    assert await stream.ping() == []
    shard = former.harness.server.node._shards[shard_id_of(worker)]
    assert shard is not None
    assert not shard.disconnected
    # The worker is attached to the new owner with the same state.
    await next_owner.harness.admin.PauseWorkers(
        admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key=worker)
    )
    assert (await stream.read()).orders.pause is True
    await stream.cut()
    await until(lambda: not is_attached(next_owner, worker))
    assert await seen(next_owner, worker) == (ACTIVE, False, True)


async def test_orders_given_during_a_move_are_not_lost(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    worker, b = workers[0], cluster.owners["b"]
    await stream.attach_fully(worker)
    move(cluster, worker, "b")
    await b.harness.admin.PauseWorkers(
        admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key=worker)
    )
    cluster.publish()
    assert (await stream.read()).orders.pause is True


async def test_a_worker_is_attached_to_the_new_owner_without_a_hint(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    """The new owner in the routing table is enough."""
    worker = workers[1]
    await stream.attach_fully(worker)
    cluster.move(shard_id_of(worker), "a", hint=False)
    cluster.publish()
    await until(lambda: is_attached(cluster.owners["a"], worker))
    assert await stream.ping() == []


async def test_a_lost_owner_does_not_count_as_a_broken_stream(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    await stream.attach_fully(*workers)
    b, worker = cluster.owners["b"], workers[1]
    await b.kill()
    await until(lambda: not is_attached(b, worker))
    shard = b.harness.server.node._shards[shard_id_of(worker)]
    assert shard is not None
    assert not shard.disconnected
    cluster.owners["a"].owned |= b.owned
    b.owned.clear()
    cluster.publish()
    await until(lambda: is_attached(cluster.owners["a"], worker))
    assert await stream.ping() == []


async def test_workers_are_attached_again_when_their_owner_returns(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    await stream.attach_fully(*workers)
    b, worker = cluster.owners["b"], workers[1]
    await b.kill()
    await until(lambda: not is_attached(b, worker))
    await b.listen()
    await until(lambda: is_attached(b, worker))
    assert await stream.ping() == []


async def test_an_attach_during_a_move_is_answered_when_the_shard_serves(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    worker, b = workers[1], cluster.owners["b"]
    b.owned.discard(shard_id_of(worker))
    await stream.request_attach(worker)
    await stream.ping()
    b.owned.add(shard_id_of(worker))
    assert not (await stream.read()).attached.HasField("status")


async def test_a_stream_gives_up_a_worker_that_attached_through_another_one(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    """The process attached through another node before its old stream was known to be broken. When the shard
    moves, the old stream must not replace the new one and then end the lease when it breaks."""
    worker = workers[1]
    await stream.attach_fully(worker)
    other = Stream(cluster.connect(cluster.owners["b"].address))
    await other.attach_fully(worker)
    move(cluster, worker, "a")
    cluster.publish()
    a = cluster.owners["a"]
    await until(lambda: is_attached(a, worker))
    await stream.ping()
    await stream.cut()
    for gateway in (cluster.frontend.gateway, a.gateway):
        await until(lambda gateway=gateway: not gateway.streams._clients)  # type: ignore[misc]
    await other.ping()
    assert await seen(a, worker) == (ACTIVE, True, False)
    await other.cut()
    await until(lambda: not is_attached(a, worker))
    assert (await seen(a, worker))[2] is True


async def test_the_end_of_the_gateway_does_not_count_as_a_break(
    cluster: Cluster, workers: tuple[str, str]
) -> None:
    stream = Stream(cluster.connect(cluster.frontend.address))
    await stream.attach_fully(*workers)
    cluster.frontend.gateway.close_streams()
    assert (await stream.read()).HasField("closing")
    assert await stream.read() is grpc.aio.EOF
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        await until(lambda owner=owner, worker=worker: not is_attached(owner, worker))  # type: ignore[misc]
        assert await seen(owner, worker) == (ACTIVE, False, False)


async def test_clients_that_are_sent_away_do_not_count_as_disconnected_and_may_come_back(
    cluster: Cluster, workers: tuple[str, str]
) -> None:
    stream = Stream(cluster.connect(cluster.frontend.address))
    await stream.attach_fully(*workers)
    cluster.frontend.gateway.send_streams_away()
    assert (await stream.read()).HasField("closing")
    assert await stream.read() is grpc.aio.EOF
    for owner, worker in zip(cluster.owners.values(), workers, strict=True):
        await until(lambda owner=owner, worker=worker: not is_attached(owner, worker))  # type: ignore[misc]
        assert await seen(owner, worker) == (ACTIVE, False, False)
    await Stream(cluster.connect(cluster.frontend.address)).attach_fully(*workers)


async def test_a_worker_resurrected_after_a_move_is_attached_again(
    cluster: Cluster, stream: Stream, workers: tuple[str, str]
) -> None:
    """Its lease had ended when the shard moved; its next heartbeat resurrects it, and the stream still
    belongs to it."""
    worker, a = workers[1], cluster.owners["a"]
    await stream.attach_fully(worker)
    a.owned.add(shard_id_of(worker))
    await a.harness.expire(worker)
    a.owned.discard(shard_id_of(worker))
    move(cluster, worker, "a")
    cluster.publish()
    gateways = [cluster.frontend.gateway.streams, a.gateway.streams]

    def refused() -> bool:
        return any(
            attachment.is_backing_off
            and attachment.pending_connection is None
            and group.connection is not None
            for gateway in gateways
            for group in gateway._groups.values()
            for attachment in group.attachments
        )

    await until(refused)
    await a.harness.beat(worker, session_id="s", sequence=2, lease_ms=60_000)
    await until(lambda: is_attached(a, worker))


async def test_the_number_of_proxied_streams_is_bounded(
    cluster: Cluster, workers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_streams, "STREAMS_MAX", 0)
    monkeypatch.setattr("liveness.routing.stream_proxy.RETRY_MS_MAX", 0)
    stream = Stream(cluster.connect(cluster.frontend.address))
    refused = unpack_status((await stream.attach(workers[0])).status)
    assert refused.code is grpc.StatusCode.UNAVAILABLE
