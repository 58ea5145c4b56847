"""The other nodes: channels to them, and the news they are told.

News only make others look sooner: all of it is found in the database too, a little later. So a message that does not
arrive is dropped, and what gathers while one is under way travels together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from liveness.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from liveness.v1.cluster_pb2_grpc import ClusterServiceAsyncStub

logger = structlog.get_logger("liveness.peers")

HINT_TIMEOUT_S = 1.0
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # so long connecting may take, over any network
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
    def __init__(self, node_id: str, connect: Callable[..., Any] = grpc.aio.insecure_channel) -> None:
        self._node_id = node_id
        self._connect = connect
        self.address = ""
        """Of this node, once it is known."""
        self.watching = False
        """Whether somebody watches events here."""
        self.watching_addresses: set[str] = set()
        """Addresses of those where somebody does."""
        self._addresses: tuple[str, ...] = ()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._pending_hints: dict[str, cluster_pb2.HintRequest] = {}
        self._send_tasks: dict[str, asyncio.Task[None]] = {}

    def set_addresses(self, addresses: Collection[str]) -> None:
        """Those who live now, this node aside."""
        self._addresses = tuple(addresses)
        self.watching_addresses.intersection_update(addresses)
        for address in self._channels.keys() - set(addresses):
            channel = self._channels.pop(address)
            asyncio.get_running_loop().create_task(channel.close(None))

    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def stub(self, address: str) -> ClusterServiceAsyncStub:
        """For calls to a node; with `wait_for_ready=False`, as always, one that is gone is told at once."""
        return cluster_pb2_grpc.ClusterServiceStub(self.channel(address))

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address, options=CHANNEL_OPTIONS)
        return channel

    # -- news

    def send_hint(self, address: str, fill: FillHint) -> None:
        """`fill` puts the news into a message, together with whatever else gathers for that node."""
        message = self._pending_hints.get(address)
        if message is None:
            message = cluster_pb2.HintRequest(node_id=self._node_id, address=self.address)
            self._pending_hints[address] = message
        fill(message)
        if address not in self._send_tasks:
            self._send_tasks[address] = asyncio.get_running_loop().create_task(self._send(address))

    def broadcast_hint(self, fill: FillHint) -> None:
        for address in self._addresses:
            self.send_hint(address, fill)

    async def broadcast_hint_and_wait(self, fill: FillHint) -> None:
        """Tell everybody, and return when they have heard of it or do not answer."""
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
                    await self.stub(address).Hint(message, timeout=HINT_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    logger.debug("news not delivered", to=address, why=error.details())
        finally:
            del self._send_tasks[address]

    async def close(self) -> None:
        for task in tuple(self._send_tasks.values()):
            task.cancel()
        await asyncio.gather(*self._send_tasks.values(), return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


def was_cancelled_by_channel() -> bool:
    """Of a call that ended as cancelled: nobody cancelled us, its channel was closed because the node is gone. Passed on
    as it is, that would end the call that we serve without an answer."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()
