"""One Relay stream to one owner, for all clients: what is sent on it, and what comes back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc
import structlog
from google.protobuf.message import DecodeError

from liveness.domain.errors import LivenessError
from liveness.frontend.channels import Channels
from liveness.frontend.forwarding import TO
from liveness.frontend.routes import Owner
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse

if TYPE_CHECKING:
    from liveness.frontend.attachments import Shelf

logger = structlog.get_logger("liveness.frontend")

RELAY_PATH = "/liveness.v1.ClusterService/Relay"
OUTBOX_MAX = 100_000
"""An owner that does not read is left; its workers are attached again when it does."""

Relay = Callable[[AsyncIterator[RelayRequest]], AsyncGenerator[RelayResponse, None]]
"""What the owner does with such a stream; over the network or, where the owner is this very node, without."""


class Link:
    def __init__(
        self,
        owner: Owner,
        open_relay: Relay,
        on_response: Callable[[Link, RelayResponse], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self.owner = owner
        self.shelves: set[Shelf] = set()
        """Shards whose workers stand here."""
        self.lost = False
        self._on_response = on_response
        self._on_lost = on_lost
        self._outbox: deque[RelayRequest] = deque()
        self._news = asyncio.Event()
        self._ending = False
        self.task = asyncio.get_running_loop().create_task(self._run(open_relay))

    def send(self, request: RelayRequest) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.task.cancel()
            return
        self._outbox.append(request)
        self._news.set()

    def end(self) -> None:
        """When everything is sent."""
        self._ending = True
        self._news.set()

    async def _requests(self) -> AsyncIterator[RelayRequest]:
        while True:
            while self._outbox:
                yield self._outbox.popleft()
            if self._ending:
                return
            self._news.clear()
            await self._news.wait()

    async def _run(self, open_relay: Relay) -> None:
        try:
            async with aclosing(open_relay(self._requests())) as responses:
                async for response in responses:
                    self._on_response(self, response)
        except (grpc.aio.AioRpcError, LivenessError) as error:
            if not self._ending:
                logger.info("relay broke", node=self.owner.node_id, why=_why(error))
        except asyncio.CancelledError:
            pass  # ours, or that of the channel, which was closed because the node is gone: both end here
        finally:
            self.lost = True
            self._on_lost(self)


def remote(owner: Owner, channels: Channels) -> Relay:
    async def open_relay(
        requests: AsyncIterator[RelayRequest],
    ) -> AsyncGenerator[RelayResponse, None]:
        async def written() -> AsyncIterator[bytes]:
            async for request in requests:
                yield request.SerializeToString()

        call = channels.to(owner.address).stream(RELAY_PATH)(written(), metadata=((TO, owner.node_id),))
        try:
            async for data in call:
                try:
                    yield RelayResponse.FromString(data)
                except DecodeError:
                    return  # who answers so has not understood
        finally:
            call.cancel()

    return open_relay


def _why(error: grpc.aio.AioRpcError | LivenessError) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
