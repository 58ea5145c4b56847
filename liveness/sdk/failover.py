"""Which of several addresses is talked to, and when it is another's turn.

All calls, polls and the stream go to one address, the current one. Whoever finds that it is gone, hangs or is about to
end says so (`report_failure`), and from then on everything goes to the next. Nobody goes back while the current one works.

Each caller counts its own failures in a row. As long as there are addresses that it has not tried, it tries again at
once; when a whole round has failed it backs off as with a single address. So callers cannot drive each other round in
circles: one that fails everywhere slows down, however well the others fare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import TypeVar

import grpc

from liveness.sdk.rpc_failures import RpcFailure
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub

CHANNEL_OPTIONS = (
    # A server that restarts is back within a second; nobody should wait for it longer than needed.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A proxy for the web is rarely meant for this, and would turn "no server" into a riddle.
    ("grpc.enable_http_proxy", 0),
    # A connection on which nothing comes back is given up. Without this, a channel would wait a quarter of an hour for
    # a machine that vanished. The server's answers to the stream's pings come more often than this, so that gRPC itself
    # has to ask only when something is wrong, and the server never finds it asking too often.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Its own connection, so that one program's two SDKs (a test's, say) do not share fate by accident.
    ("grpc.use_local_subchannel_pool", 1),
)

CONNECT_TIMEOUT_MS = 100
"""How long an attempt to connect may take at least. gRPC itself gives the next one more."""
FAILOVER_CONNECT_TIMEOUT_MS = (200, 5_000)
"""A node that accepts and then says nothing must not use up the time that there is to find another; but where all are
far away, each has to be given the time that it takes. So it is short at first, and doubles with each round."""

log = logging.getLogger("liveness.sdk")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ServerEndpoint:
    """An address from the time its turn comes until it is left. Its name is resolved anew each time."""

    address: str
    channel: grpc.Channel
    liveness: LivenessServiceStub
    activities: ActivityServiceStub

    @classmethod
    def connect(cls, address: str, connect_timeout_ms: int) -> ServerEndpoint:
        """Connects when it is first used."""
        options = (*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", connect_timeout_ms))
        channel = grpc.insecure_channel(address, options=options)
        return cls(address, channel, LivenessServiceStub(channel), ActivityServiceStub(channel))


class ServerEndpoints:
    """`mark_success`, `report_failure` and `close` are for one thread, the ticker's; the rest is for any."""

    def __init__(
        self, addresses: Sequence[str], random: Random, on_abandoned: Callable[[ServerEndpoint], None]
    ) -> None:
        """`on_abandoned` is told of each route that was left. Calls may still be under way there; `close` ends them."""
        # Each process its own order: a fleet spreads over the nodes, and those of a dead node over the others.
        self._addresses = random.sample(addresses, len(addresses))
        self._current_index = 0
        self._move_count = 0
        """Since a call was answered."""
        self._on_abandoned = on_abandoned
        self._lock = Lock()
        self._abandoned_endpoints: set[ServerEndpoint] = set()
        self.current = self._open_endpoint()

    def __len__(self) -> int:
        return len(self._addresses)

    def start_call(self, start: Callable[[ServerEndpoint], T]) -> tuple[ServerEndpoint, T]:
        """Begin a call at the current address, which is not left in between. `start` must not block."""
        with self._lock:
            return self.current, start(self.current)

    def mark_success(self, endpoint: ServerEndpoint) -> None:
        """A call on it was answered."""
        if endpoint is self.current:
            self._move_count = 0

    @property
    def connect_timeout_ms(self) -> int:
        """How long the current node may take to be connected to."""
        if len(self) == 1:
            return CONNECT_TIMEOUT_MS
        first_ms, last_ms = FAILOVER_CONNECT_TIMEOUT_MS
        rounds = min(self._move_count // len(self), last_ms.bit_length())
        return min(first_ms << rounds, last_ms)

    def report_failure(self, endpoint: ServerEndpoint, rpc_failure: RpcFailure, failures: int) -> bool:
        """A call on `endpoint` ended like this, its caller's so manieth failure in a row. Whether the caller may try again
        at once: elsewhere, where it has not been."""
        if rpc_failure.should_fail_over and endpoint is self.current and len(self) > 1:
            self._switch(rpc_failure)
        return endpoint is not self.current and failures < len(self)

    def close(self, endpoint: ServerEndpoint) -> None:
        """Calls that are still under way there end as CANCELLED."""
        with self._lock:
            self._abandoned_endpoints.discard(endpoint)
            endpoint.channel.close()

    def close_all(self) -> None:
        for endpoint in (*self._abandoned_endpoints, self.current):
            self.close(endpoint)

    def _switch(self, rpc_failure: RpcFailure) -> None:
        self._current_index = (self._current_index + 1) % len(self)
        self._move_count += 1
        with self._lock:
            abandoned, self.current = self.current, self._open_endpoint()
            self._abandoned_endpoints.add(abandoned)
        log.info("leaving %s for %s: %s", abandoned.address, self.current.address, rpc_failure)
        self._on_abandoned(abandoned)

    def _open_endpoint(self) -> ServerEndpoint:
        return ServerEndpoint.connect(self._addresses[self._current_index], self.connect_timeout_ms)
