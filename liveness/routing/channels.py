"""Connections to nodes: one channel per address, closed when no node has the address any more.

Closing a channel ends its calls at once, and those that may be repeated go to another node. A machine that vanished closes
no connections; without this, calls to it would wait until TCP gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import grpc

from liveness.background import BackgroundTasks

# A restarted node listens at its old address within a second; gRPC's default back-off is up to two minutes.
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the time-out of a connection attempt
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

CACHED_CALLS_MAX = 200


class Channel:
    """A gRPC channel to one address. Messages are bytes."""

    def __init__(self, address: str, connect: Callable[..., Any] = grpc.aio.insecure_channel) -> None:
        self.address = address
        self._channel = connect(address, options=_OPTIONS)
        self._calls: dict[tuple[str, str], Any] = {}

    def unary(self, path: str) -> Any:
        return self._callable("unary_unary", path)

    def server_stream(self, path: str) -> Any:
        return self._callable("unary_stream", path)

    def stream(self, path: str) -> Any:
        return self._callable("stream_stream", path)

    def _callable(self, kind: str, path: str) -> Any:
        call = self._calls.get((kind, path))
        if call is None:
            call = getattr(self._channel, kind)(path)
            if len(self._calls) < CACHED_CALLS_MAX:  # clients may call paths that do not exist
                self._calls[kind, path] = call
        return call

    async def close(self) -> None:
        await self._channel.close()


class ChannelPool:
    def __init__(self, connect: Callable[..., Any] = grpc.aio.insecure_channel) -> None:
        self._connect = connect
        self._open: dict[str, Channel] = {}
        self._closing = BackgroundTasks("channels")

    def channel_for(self, address: str) -> Channel:
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = Channel(address, self._connect)
        return channel

    def close_except(self, addresses: Collection[str]) -> None:
        """Close the channels to all other addresses."""
        for address in [address for address in self._open if address not in addresses]:
            self._closing.start(self._open.pop(address).close())

    async def close(self) -> None:
        self.close_except(())
        await self._closing.wait()
