"""The other nodes of the cluster: the channels to them, and the hints that this node sends them.

A hint only makes another node look sooner: it would find all of it in the database, a little later. So a hint that does
not arrive is dropped, and hints that gather while one is under way travel together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from liveness.background import BackgroundTasks
from liveness.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from liveness.v1.cluster_pb2_grpc import ClusterServiceAsyncStub

logger = structlog.get_logger("liveness.peers")

HINT_TIMEOUT_S = 1.0
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # the time that connecting may take on any network
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    # A machine that vanished does not close its connections.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
)

FillHint = Callable[[cluster_pb2.HintRequest], None]


class Peers:
    def __init__(
        self, node_id: str, address: str = "", connect: Callable[..., Any] = grpc.aio.insecure_channel
    ) -> None:
        """`node_id` and `address`: those of this node."""
        self._node_id = node_id
        self._address = address
        self.connect = connect
        self.watching = False
        """Whether any client watches events at this node."""
        self.watching_addresses: set[str] = set()
        """Addresses of the nodes at which clients watch events."""
        self.on_attended: Callable[[Iterable[tuple[str, str, Collection[str]]]], None] = lambda queues: None
        """Called with the task queues that this node offered and that workers attend at another node: namespace, task queue,
        and the activity types that they attend, none for all."""
        self._addresses: tuple[str, ...] = ()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._pending_hints: dict[str, cluster_pb2.HintRequest] = {}
        self._send_tasks: dict[str, asyncio.Task[None]] = {}
        """The task that sends hints to an address, while it runs."""
        self._tasks = BackgroundTasks("peers")

    def set_addresses(self, addresses: Collection[str]) -> None:
        """Set the addresses of all live nodes but this one, and close the channels to others."""
        self._addresses = tuple(addresses)
        self.watching_addresses.intersection_update(addresses)
        for address in self._channels.keys() - set(addresses):
            channel = self._channels.pop(address)
            self._tasks.start(channel.close(None))

    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def stub(self, address: str) -> ClusterServiceAsyncStub:
        """A stub for calls to a node. Calls do not wait for a connection: they fail at once if the node is gone."""
        return cluster_pb2_grpc.ClusterServiceStub(self.channel(address))

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self.connect(address, options=CHANNEL_OPTIONS)
        return channel

    # -- hints

    def send_hint(self, address: str, fill: FillHint) -> None:
        """Send a hint soon. `fill` writes it into a message that it shares with other hints for the same node."""
        message = self._pending_hints.get(address)
        if message is None:
            message = cluster_pb2.HintRequest(node_id=self._node_id, address=self._address)
            self._pending_hints[address] = message
        fill(message)
        if address not in self._send_tasks:
            self._send_tasks[address] = self._tasks.start(self._send(address))

    def broadcast_hint(self, fill: FillHint) -> None:
        for address in self._addresses:
            self.send_hint(address, fill)

    async def broadcast_hint_and_wait(self, fill: FillHint) -> None:
        """Send a hint to all nodes, and return when each has received it or did not answer in time."""
        self.broadcast_hint(fill)
        if send_tasks := [
            self._send_tasks[address] for address in self._addresses if address in self._send_tasks
        ]:
            await asyncio.wait(send_tasks)

    async def _send(self, address: str) -> None:
        try:
            while (message := self._pending_hints.pop(address, None)) is not None:
                message.watching = self.watching
                try:
                    answer = await self.stub(address).Hint(message, timeout=HINT_TIMEOUT_S)
                    self.on_attended(
                        (offer.namespace, offer.task_queue, offer.activity_types) for offer in answer.attended
                    )
                except grpc.aio.AioRpcError as error:
                    logger.debug("hint not delivered", to=address, why=error.details())
                except asyncio.CancelledError:
                    if not was_cancelled_by_channel():
                        raise
        finally:
            self._send_tasks.pop(address, None)

    async def close(self) -> None:
        await self._tasks.close()
        self._send_tasks.clear()
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


def was_cancelled_by_channel() -> bool:
    """Whether a call that ended as cancelled ended because its channel was closed, with the node it led to.

    The current task was not cancelled then. Raised further, the error would end the call that is served here without an
    answer."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()
