"""Attach streams: immediate orders, and the effect of a broken stream on the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from liveness.domain.commands import Deactivate
from liveness.domain.events import DisconnectGraceGranted
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import InactiveReason
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit
from liveness.network_addresses import network_name
from liveness.v1 import worker_pb2
from liveness.v1.service_pb2 import AttachRequest, AttachResponse
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import AVAILABLE, ActivityClient
from tests.integration.server.server_harness import ACTIVE, INACTIVE, NAMESPACE, ServerHarness, unpack_status


class Stream:
    def __init__(self, harness: ServerHarness) -> None:
        # A separate channel, closed as abruptly as that of a killed process.
        self._channel = grpc.aio.insecure_channel(
            harness.server.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        method = "/liveness.v1.LivenessService/Attach"
        self.call: Any = self._channel.stream_stream(
            method, AttachRequest.SerializeToString, AttachResponse.FromString
        )()

    async def attach(
        self, worker: str = "w", grace_ms: int | None = 2_000, session: str = "", number: int = 0
    ) -> Any:
        request = AttachRequest.Attach(
            namespace=NAMESPACE,
            worker_instance_key=worker,
            session_id=session or f"session-{worker}",
            attach_number=number,
        )
        if grace_ms is not None:
            request.disconnect_grace.CopyFrom(duration(grace_ms))
        await self.call.write(AttachRequest(attach=request))
        return (await self.read()).attached

    async def attach_fully(self, worker: str = "w", grace_ms: int | None = 2_000) -> Any:
        """Attach and read the first orders."""
        attached = await self.attach(worker, grace_ms)
        assert not attached.HasField("status"), attached.status
        assert (await self.read()).HasField("orders")
        return attached

    async def detach(self, worker: str = "w") -> None:
        detach = AttachRequest.Detach(namespace=NAMESPACE, worker_instance_key=worker)
        await self.call.write(AttachRequest(detach=detach))
        await self.ping()

    async def ping(self, number: int = 1) -> None:
        await self.call.write(AttachRequest(ping=AttachRequest.Ping(number=number)))
        while True:
            message = await self.read()
            if message.HasField("pong"):
                assert message.pong.number == number
                return

    async def is_direct(self, address: str, network: str) -> bool:
        ping = AttachRequest.Ping(number=7, server_addresses=[address], network=network)
        await self.call.write(AttachRequest(ping=ping))
        response = await self.read()
        assert response.pong.number == 7
        return bool(response.pong.direct)

    async def read(self) -> Any:
        return await asyncio.wait_for(self.call.read(), 10)

    async def cut(self) -> None:
        """Close the connection, as when the process is killed."""
        await self._channel.close()


@pytest.fixture
async def activity_client(sqlite_harness: ServerHarness) -> ActivityClient:
    await sqlite_harness.restart(takeover_grace_ms=0)
    return ActivityClient(sqlite_harness)


@pytest.fixture
async def stream(activity_client: ActivityClient) -> AsyncIterator[Stream]:
    stream = Stream(activity_client.harness)
    yield stream
    await stream.cut()


async def cut(activity_client: ActivityClient, stream: Stream, worker: str = "w") -> None:
    """Cut the stream and wait until the server has noticed."""
    await stream.cut()
    while worker in {key.instance_key for key in activity_client.harness.server.streams._by_worker}:
        await asyncio.sleep(0.001)


async def test_a_lone_server_says_whether_a_client_is_connected_directly(
    activity_client: ActivityClient, stream: Stream
) -> None:
    address = activity_client.harness.server.address
    assert await stream.is_direct(address, network_name())
    assert not await stream.is_direct("127.0.0.1:1", network_name())
    assert not await stream.is_direct(address, "another network")


async def test_a_node_of_a_cluster_calls_no_connection_direct(harness: ServerHarness, dialect: str) -> None:
    """Another node may own the worker, and count the grace that this node reports."""
    stream = Stream(harness)
    assert await stream.is_direct(harness.server.address, network_name()) is (dialect == "sqlite")
    await stream.cut()


async def test_the_granted_grace_is_at_most_the_lease(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=5_000)
    assert (await stream.attach_fully(grace_ms=2_000)).disconnect_grace == duration(2_000)
    assert (await activity_client.harness.describe()).disconnect_grace == duration(2_000)
    assert (await stream.attach_fully(grace_ms=60_000)).disconnect_grace == duration(5_000)


async def test_a_broken_stream_marks_the_worker_as_suspect_and_ends_its_lease_after_the_grace(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.take()
    await stream.attach_fully()
    seen = await activity_client.harness.describe()
    assert (seen.attached, seen.suspect) == (True, False)
    await cut(activity_client, stream)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.attached, seen.suspect) == (ACTIVE, False, True)
    await activity_client.harness.advance(1_900)
    assert (await activity_client.harness.describe()).state == ACTIVE
    await activity_client.harness.advance(300)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect) == (INACTIVE, False)
    assert seen.inactive_reason == worker_pb2.INACTIVE_REASON_DISCONNECTED
    assert (await activity_client.describe("a")).worker_deaths == 1


@pytest.mark.parametrize("returns_by", ["heartbeat", "stream"])
async def test_a_disconnected_worker_gets_no_work_until_it_is_heard_of(
    activity_client: ActivityClient, stream: Stream, returns_by: str
) -> None:
    """Its poll may wait on a connection that is cut. It would lose the work when its grace ends."""
    harness = activity_client.harness
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await cut(activity_client, stream)
    taking = asyncio.ensure_future(activity_client.take())
    while not harness.server.matching.waiting_poll_count():
        await asyncio.sleep(0.001)
    await activity_client.schedule("a")
    await harness.advance(1_000)
    assert await activity_client.state("a") == AVAILABLE
    assert await activity_client.poll() == []
    again = Stream(harness)
    if returns_by == "heartbeat":
        await activity_client.beat(lease_ms=60_000)
    else:
        await again.attach_fully()
    await harness.advance(1_000)
    assert (await asyncio.wait_for(taking, 10)).id.activity_id == "a"
    await again.cut()


async def test_a_heartbeat_within_the_grace_keeps_the_lease(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await cut(activity_client, stream)
    await activity_client.harness.advance(1_900)
    await activity_client.beat(lease_ms=60_000)  # the fast path
    assert (await activity_client.harness.describe()).suspect is False
    await activity_client.harness.advance(50_000)
    assert (await activity_client.harness.describe()).state == ACTIVE


async def test_a_new_stream_within_the_grace_keeps_the_lease(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await cut(activity_client, stream)
    await activity_client.harness.advance(1_900)
    again = Stream(activity_client.harness)
    await again.attach_fully()
    await activity_client.harness.advance(20_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.attached, seen.suspect) == (ACTIVE, True, False)
    await again.cut()


async def test_the_break_of_an_older_stream_does_not_count(
    activity_client: ActivityClient, stream: Stream
) -> None:
    """The worker attached again before the server noticed that the old stream was broken."""
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    again = Stream(activity_client.harness)
    await again.attach_fully()
    await stream.cut()
    await again.ping()
    assert (await activity_client.harness.describe()).suspect is False
    await activity_client.harness.advance(20_000)
    assert (await activity_client.harness.describe()).state == ACTIVE
    await again.cut()


async def test_a_broken_stream_without_a_grace_does_not_affect_the_lease(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully(grace_ms=None)
    await cut(activity_client, stream)
    await activity_client.harness.advance(59_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect) == (ACTIVE, False)


async def test_a_detach_is_not_a_break(activity_client: ActivityClient, stream: Stream) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await stream.detach()
    await stream.cut()
    await activity_client.harness.advance(20_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect) == (ACTIVE, False)


async def test_a_server_shutdown_does_not_count_as_a_break(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    stopping = asyncio.ensure_future(activity_client.harness.restart())
    assert (await stream.read()).HasField("closing")
    await stopping
    await activity_client.harness.advance(20_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect) == (ACTIVE, False)


async def test_a_break_before_a_server_restart_does_not_count(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await cut(activity_client, stream)
    await activity_client.harness.restart()
    await activity_client.harness.advance(20_000)
    assert (await activity_client.harness.describe()).state == ACTIVE


async def test_the_stream_of_a_replaced_session_does_not_count(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await activity_client.harness.beat(session_id="next", sequence=1, lease_ms=60_000)
    await cut(activity_client, stream)
    await activity_client.harness.advance(20_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect, seen.attached) == (ACTIVE, False, False)


@pytest.mark.parametrize(
    ("present", "late", "is_refused"),
    [(2, 1, True), (2, 2, False), (2, 3, False), (2, 0, False), (0, 1, False)],
)
async def test_an_attach_request_that_is_older_than_the_one_that_counts_is_refused(
    activity_client: ActivityClient, stream: Stream, present: int, late: int, is_refused: bool
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach(number=present)
    other = Stream(activity_client.harness)
    attached = await other.attach(grace_ms=1_000, number=late)
    assert attached.HasField("status") is is_refused
    if is_refused:
        assert unpack_status(attached.status).reason == "ATTACHMENT_REPLACED"
    await (other if is_refused else stream).ping()
    await (other if is_refused else stream).cut()
    await (stream if is_refused else other).ping()
    await activity_client.harness.advance(5_000)
    seen = await activity_client.harness.describe()
    assert (seen.state, seen.suspect, seen.attached) == (ACTIVE, False, True)
    await other.cut()


class LeaseEnder(NodeListener):
    """Ends a worker's lease as soon as its grace is durable, before any caller that waits for that goes on."""

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        for prepared in commits:
            if any(isinstance(entry.event, DisconnectGraceGranted) for entry in prepared.commit.entries):
                command = Deactivate(InactiveReason.SHUTDOWN, "", Policy(), "")
                prepared.shard.deactivate(WorkerKey(NAMESPACE, "w"), command)


async def test_a_worker_whose_lease_ends_while_it_is_attached_is_refused(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    activity_client.harness.server.node.add_listener(LeaseEnder())
    attached = await stream.attach()
    assert unpack_status(attached.status).reason == "WORKER_NOT_ACTIVE"


async def test_numbers_of_another_session_are_not_compared(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach(number=9)
    await activity_client.harness.beat(session_id="next", sequence=1, lease_ms=60_000)
    other = Stream(activity_client.harness)
    assert not (await other.attach(session="next", number=1)).HasField("status")
    await other.cut()


async def test_orders_are_sent_on_the_stream_at_once(activity_client: ActivityClient, stream: Stream) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.take()
    await stream.attach_fully()
    await activity_client.pause("w")
    assert (await stream.read()).orders.pause is True
    await activity_client.resume("w")
    assert (await stream.read()).orders.pause is False
    await activity_client.pause(all=True)
    assert (await stream.read()).orders.pause is True
    await activity_client.cancel("a")
    assert [ref.activity_id for ref in (await stream.read()).orders.cancel_activities] == ["a"]
    await activity_client.drain(limit_ms=5_000)
    orders = (await stream.read()).orders
    assert (orders.drain, orders.drain_remaining) == (True, duration(5_000))
    await activity_client.harness.expire()
    orders = (await stream.read()).orders
    assert (orders.state, orders.lease_epoch) == (INACTIVE, 1)


async def test_the_cancellation_of_the_next_attempt_is_sent_at_once_too(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.take()
    await stream.attach_fully()
    await activity_client.harness.advance(5_000)
    await activity_client.beat(lease_ms=60_000)  # does not confirm it
    await activity_client.harness.advance(5_500)
    assert [ref.attempt for ref in (await stream.read()).orders.cancel_activities] == [1]
    task = await activity_client.take()
    await activity_client.beat(bound_activities=[activity("a", attempt=task.attempt)])
    await activity_client.cancel("a")
    assert [ref.attempt for ref in (await stream.read()).orders.cancel_activities] == [2]


async def test_one_stream_serves_many_workers_and_survives_a_refusal(
    activity_client: ActivityClient, stream: Stream
) -> None:
    await activity_client.beat("a", lease_ms=60_000)
    await activity_client.beat("b", lease_ms=60_000)
    await stream.attach_fully("a")
    refused = unpack_status((await stream.attach("unknown")).status)
    assert refused.reason == "WORKER_NOT_FOUND"
    refused = unpack_status((await stream.attach("b", session="another")).status)
    assert refused.reason == "SESSION_NOT_CURRENT"
    await stream.attach_fully("b")
    await cut(activity_client, stream, "b")
    await activity_client.harness.advance(3_000)
    assert [(await activity_client.harness.describe(name)).state for name in ("a", "b")] == [
        INACTIVE,
        INACTIVE,
    ]


async def test_a_resurrected_session_keeps_its_grace(activity_client: ActivityClient, stream: Stream) -> None:
    await activity_client.beat(lease_ms=60_000)
    await stream.attach_fully()
    await activity_client.harness.expire()
    await activity_client.beat(lease_ms=60_000)
    await cut(activity_client, stream)
    assert (await activity_client.harness.describe()).suspect is True


async def test_an_empty_stream_message_is_refused(stream: Stream) -> None:
    await stream.call.write(AttachRequest())
    with pytest.raises(grpc.aio.AioRpcError, match="must be attach, detach or ping") as refused:
        await stream.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
