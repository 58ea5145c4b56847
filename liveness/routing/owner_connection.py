"""The Relay stream to one owner. It carries the requests and responses of all clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc
import structlog
from google.protobuf.message import DecodeError

from liveness.background import BackgroundTasks
from liveness.domain.errors import LivenessError
from liveness.routing.channels import ChannelPool
from liveness.routing.forwarding import TARGET_NODE_HEADER
from liveness.routing.routing_table import Owner
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse

if TYPE_CHECKING:
    from liveness.routing.attachments import ShardAttachments

logger = structlog.get_logger("liveness.frontend")

RELAY_PATH = "/liveness.v1.ClusterService/Relay"
OUTBOX_MAX = 100_000
"""Beyond this the connection is dropped: the owner does not read. Its workers are attached again later."""

OpenStream = Callable[[AsyncIterator[RelayRequest]], AsyncGenerator[RelayResponse, None]]
"""Opens a Relay stream: over the network, or directly if this node is the owner."""


class OwnerConnection:
    def __init__(
        self,
        owner: Owner,
        open_stream: OpenStream,
        on_response: Callable[[OwnerConnection, RelayResponse], None],
        on_lost: Callable[[OwnerConnection], None],
        tasks: BackgroundTasks,
    ) -> None:
        self.owner = owner
        self.groups: set[ShardAttachments] = set()
        """The shards whose workers are attached on this connection."""
        self.is_lost = False
        self._on_response = on_response
        self._on_lost = on_lost
        self._outbox: deque[RelayRequest] = deque()
        self._wakeup = asyncio.Event()
        self._is_closing = False
        self.task = tasks.start(self._run(open_stream))

    def send(self, request: RelayRequest) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.task.cancel()
            return
        self._outbox.append(request)
        self._wakeup.set()

    def close_when_sent(self) -> None:
        """Close the connection after everything in the outbox was sent."""
        self._is_closing = True
        self._wakeup.set()

    async def _requests(self) -> AsyncIterator[RelayRequest]:
        while True:
            while self._outbox:
                yield self._outbox.popleft()
            if self._is_closing:
                return
            self._wakeup.clear()
            await self._wakeup.wait()

    async def _run(self, open_stream: OpenStream) -> None:
        try:
            async with aclosing(open_stream(self._requests())) as responses:
                async for response in responses:
                    self._on_response(self, response)
        except (grpc.aio.AioRpcError, LivenessError) as error:
            if not self._is_closing:
                logger.info("relay broke", node=self.owner.node_id, why=_describe(error))
        except asyncio.CancelledError:
            pass  # this task, or the channel, which is closed when its node is gone: the connection ends either way
        finally:
            self.is_lost = True
            self._on_lost(self)


def open_remote_stream(owner: Owner, channels: ChannelPool) -> OpenStream:
    async def open_stream(
        requests: AsyncIterator[RelayRequest],
    ) -> AsyncGenerator[RelayResponse, None]:
        async def serialized() -> AsyncIterator[bytes]:
            async for request in requests:
                yield request.SerializeToString()

        call = channels.channel_for(owner.address).stream(RELAY_PATH)(
            serialized(), metadata=((TARGET_NODE_HEADER, owner.node_id),)
        )
        try:
            async for data in call:
                try:
                    yield RelayResponse.FromString(data)
                except DecodeError:
                    return  # the node did not understand the request
        finally:
            call.cancel()

    return open_stream


def _describe(error: grpc.aio.AioRpcError | LivenessError) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
